"""Which members keep whose copies: apart from the pod itself, balanced, and stable."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

import pytest

from understudy_sidecar.membership.copy_placement import Site, place_copies

NONE: tuple[str, ...] = ()


def sites(*domains: str, spares: Sequence[str] = ()) -> list[Site]:
    """A pod p0, p1, … on a node of its own in each of these domains; then the spares s0, s1, …"""
    pods = [Site(f"p{number}", f"node-{number}", domain) for number, domain in enumerate(domains)]
    return pods + [Site(f"s{number}", f"node-s{number}", domain, False) for number, domain in enumerate(spares)]


def place(
    members: list[Site], copies: int = 1, previous: Sequence[Sequence[str]] | None = None
) -> list[tuple[str, ...]]:
    owners = [site for site in members if site.has_ranks]
    return place_copies(owners, members, previous or [NONE] * len(owners), copies)


def test_two_pods_keep_each_others_copies() -> None:
    assert place(sites("", "")) == [("p1",), ("p0",)]


def test_one_pod_alone_has_no_copies() -> None:
    assert place(sites("")) == [()]


def test_each_copy_goes_to_another_domain_and_each_member_keeps_one() -> None:
    placed = place(sites("a", "a", "b", "b", "c", "c"))
    assert all(uids != () for uids in placed)
    assert Counter(uid for (uid,) in placed) == Counter(["p0", "p1", "p2", "p3", "p4", "p5"])
    domains = {"p0": "a", "p1": "a", "p2": "b", "p3": "b", "p4": "c", "p5": "c"}
    assert all(domains[f"p{rank}"] != domains[uid] for rank, (uid,) in enumerate(placed))


def test_a_spare_that_joins_keeps_all_copies_for_which_there_was_no_pod() -> None:
    # given two pods that keep each other's copies, although the job wants two of each
    members = sites("", "", spares=[""])
    # when a spare joins
    placed = place(members, copies=2, previous=[("p1",), ("p0",)])
    # then it has room for the second copies of both, and they stay there
    assert placed == [("p1", "s0"), ("p0", "s0")]
    assert place(members, copies=2, previous=placed) == placed


def test_pods_of_the_largest_domain_that_find_no_other_one_use_another_node() -> None:
    placed = place(sites("a", "a", "a", "b"))
    assert sorted(uid for (uid,) in placed) == ["p0", "p1", "p2", "p3"]
    assert all(f"p{rank}" != uid for rank, (uid,) in enumerate(placed))
    assert placed[3][0] in ("p0", "p1", "p2")


def test_a_copy_goes_to_another_node_before_another_pod_of_the_same_node() -> None:
    shared = [Site("p0", "node-0"), Site("p1", "node-0"), Site("p2", "node-1"), Site("p3", "node-1")]
    node = {"p0": 0, "p1": 0, "p2": 1, "p3": 1}
    assert all(node[f"p{rank}"] != node[uid] for rank, (uid,) in enumerate(place(shared)))


def test_on_one_node_another_pod_keeps_the_copies() -> None:
    assert place([Site("p0", "node-0"), Site("p1", "node-0")]) == [("p1",), ("p0",)]


def test_spares_come_first() -> None:
    assert place(sites("", "", spares=["", ""])) == [("s0",), ("s1",)]


def test_two_copies_are_in_two_pods() -> None:
    placed = place(sites("", "", ""), copies=2)
    assert [set(uids) for uids in placed] == [{"p1", "p2"}, {"p0", "p2"}, {"p0", "p1"}]


def test_more_copies_than_other_pods_are_not_kept() -> None:
    assert place(sites("", ""), copies=2) == [("p1",), ("p0",)]


def test_holders_stay_when_a_pod_is_replaced() -> None:
    # given p1 was replaced by the spare, which kept the copies of p0
    before = place(sites("", "", "", spares=[""]))
    assert before[0] == ("s0",)
    members = [Site("p0", "node-0"), Site("s0", "node-s0"), Site("p2", "node-2"), Site("new", "node-9", "", False)]
    after = place_copies(members[:3], members, before, 1)
    # then only copies whose holder was lost move
    assert [uids for uids, old in zip(after, before, strict=True) if old not in (("p1",), uids)] == []
    assert after[0] == ("s0",)


def test_the_last_pod_without_another_member_changes_with_a_pair() -> None:
    # given p0 and p1 keep each other's copies, and p2 is new
    placed = place(sites("", "", ""), previous=[("p1",), ("p0",), ()])
    assert sorted(uid for (uid,) in placed) == ["p0", "p1", "p2"]
    assert all(f"p{rank}" != uid for rank, (uid,) in enumerate(placed))


def test_a_holder_in_the_own_domain_is_replaced_once_another_domain_is_there() -> None:
    assert place(sites("a", "a", spares=["b"]), previous=[("p1",), ("p0",)])[0] == ("s0",)


@pytest.mark.parametrize("seed", range(60))
def test_any_job_has_all_copies_that_its_members_can_keep(seed: int) -> None:
    rng = random.Random(seed)
    names = rng.choices("abcd", k=rng.randint(1, 4))
    members = sites(*rng.choices(names, k=rng.randint(2, 30)), spares=rng.choices(names, k=rng.randint(0, 4)))
    copies = rng.choice([1, 2])
    placed = place(members, copies)
    owners = [site for site in members if site.has_ranks]
    held = Counter(uid for uids in placed for uid in uids)
    # then no pod keeps its own copies, none keeps too many, and all have one
    assert all(site.uid not in uids and len(set(uids)) == len(uids) for site, uids in zip(owners, placed, strict=True))
    assert max(held.values()) <= copies
    assert all(uids for uids in placed)
    # and the same members keep the same copies
    largest = Counter(site.domain for site in members).most_common(1)[0][1]
    if 2 * largest <= len(members) and copies == 1:
        domain = {site.uid: site.domain for site in members}
        assert all(domain[site.uid] != domain[uids[0]] for site, uids in zip(owners, placed, strict=True))
        assert place(members, copies, placed) == placed
