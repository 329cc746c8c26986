"""The members that take the vacant ranks."""

import pytest

from understudy_sidecar.membership.placement import RankCandidate, place


def candidates(*names: str) -> list[RankCandidate]:
    """`s1` is a spare, `2` the pod that was created for rank 2; in the order in which they joined."""
    return [RankCandidate(name, None if name.startswith("s") else int(name)) for name in names]


def test_a_member_on_a_node_that_leaves_soon_is_the_last_choice() -> None:
    goes, stays = RankCandidate("s1", None, "rack", node_stays=False), RankCandidate("s2", None)
    domains = {0: "rack"}
    assert place([0], [goes, stays], spares_allowed=True, domains=domains).taken == {0: "s2"}
    assert place([0, 1], [goes, stays], spares_allowed=True, domains=domains).taken == {0: "s2", 1: "s1"}
    assert place([0], [goes], spares_allowed=True).taken == {0: "s1"}


@pytest.mark.parametrize(
    ("vacant", "waiting", "spares_allowed", "taken", "missing"),
    [
        ([], ["s1"], True, {}, ()),
        ([0, 1], ["1", "0"], False, {0: "0", 1: "1"}, ()),
        ([0, 1], ["s1", "0"], False, {0: "0"}, (1,)),
        ([0, 1], ["s1", "0"], True, {0: "0", 1: "s1"}, ()),
        ([0, 1], ["s1", "s2", "1"], True, {0: "s1", 1: "1"}, ()),
        ([1], ["0", "s1"], True, {1: "s1"}, ()),  # a spare before a pod that was created for another rank
        ([1], ["0"], True, {1: "0"}, ()),
        ([1], ["0"], False, {}, (1,)),
        ([0, 1, 2], ["s1"], True, {0: "s1"}, (1, 2)),
    ],
)
def test_vacant_ranks_go_to_their_own_pods_first_and_then_to_spares(
    vacant: list[int], waiting: list[str], spares_allowed: bool, taken: dict[int, str], missing: tuple[int, ...]
) -> None:
    placement = place(vacant, candidates(*waiting), spares_allowed=spares_allowed)
    assert (placement.taken, placement.missing) == (taken, missing)
