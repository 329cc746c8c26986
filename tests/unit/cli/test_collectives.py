"""The rank that has not entered the collective in which the others wait."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from understudy_cli.log_lines import GroupPosition, positions
from understudy_cli.views.collectives import late_ranks, unknown_rank

#: As a rank writes them: it waits in all_reduce 6, or has completed 5.
WAITS, DONE = "0/default_pg gloo:all_reduce=6 waits all_reduce=6", "0/default_pg gloo:all_reduce=5"


def of_ranks(*texts: str) -> Mapping[int, tuple[GroupPosition, ...] | None]:
    """By rank. "": the rank has written nothing."""
    return {rank: positions(f"understudy collectives: {text}") for rank, text in enumerate(texts)}


@pytest.mark.parametrize(
    ("texts", "outside", "ranks", "evidence"),
    [
        pytest.param(
            (WAITS, WAITS, DONE, WAITS),
            [],
            (2,),
            "ranks 0-1, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it",
            id="one rank has not come",
        ),
        pytest.param(
            (DONE, WAITS),
            [],
            (0,),
            "rank 1 waits in all_reduce 6 of group 0 (default_pg), and it has not entered it",
            id="of two ranks one",
        ),
        pytest.param(
            (WAITS, WAITS, DONE, DONE),
            [],
            (2, 3),
            "ranks 0-1 wait in all_reduce 6 of group 0 (default_pg), and they have not entered it",
            id="two ranks",
        ),
        pytest.param(
            (
                "0/default_pg gloo:all_reduce=7 waits all_reduce=7",
                "0/default_pg gloo:broadcast=6 waits broadcast=6",
                DONE,
                "0/default_pg gloo:all_reduce=8 waits broadcast=6",
            ),
            [],
            (2,),
            "ranks 1, 3 wait in broadcast 6 of group 0 (default_pg), and it has not entered it",
            id="the source of a broadcast has gone on",
        ),
        pytest.param(
            (WAITS, WAITS, f"1/_ gloo:barrier=1 waits barrier=1, {DONE}", WAITS),
            [],
            (2,),
            "ranks 0-1, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it: rank 2 waits in "
            "barrier 1 of group 1",
            id="it waits in another group that no other rank uses",
        ),
        pytest.param(
            (WAITS, WAITS, "0/default_pg gloo:broadcast=5 waits broadcast=5", WAITS),
            [],
            (2,),
            "ranks 0-1, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it: rank 2 waits in "
            "broadcast 5 of group 0 (default_pg)",
            id="it waits in an older collective",
        ),
        pytest.param(
            (
                "1/mesh_tp gloo:all_reduce=40 waits all_reduce=40, 2/mesh_dp gloo:all_reduce=9",
                "1/mesh_tp gloo:all_reduce=39, 4/mesh_dp gloo:all_reduce=9",
                "2/mesh_dp gloo:all_reduce=10 waits all_reduce=10, 3/mesh_tp gloo:all_reduce=40",
            ),
            [],
            (1,),
            "rank 0 waits in all_reduce 40 of group 1 (mesh_tp), and it has not entered it",
            id="a rank that others wait for waits itself",
        ),
        pytest.param(
            (DONE, WAITS, DONE, WAITS),
            [2],
            (2,),
            "ranks 1, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it",
            id="a receive of gloo is not recorded",
        ),
        pytest.param(
            (WAITS, "", DONE, WAITS),
            [],
            (2,),
            "ranks 0, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it",
            id="another rank has written nothing",
        ),
    ],
)
def test_late_ranks(texts: tuple[str, ...], outside: list[int], ranks: tuple[int, ...], evidence: str) -> None:
    found = late_ranks(of_ranks(*texts), outside)
    assert found is not None
    assert (found.ranks, found.evidence) == (ranks, evidence)


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param((WAITS,) * 4, id="all wait in one"),
        pytest.param((DONE,) * 4, id="none waits"),
        pytest.param((WAITS, WAITS, "", WAITS), id="one has written nothing"),
        pytest.param((DONE, DONE, DONE, WAITS), id="one alone waits"),
        pytest.param((DONE, "0/default_pg gloo:all_reduce=6", WAITS[:30]), id="none waits, and one is behind"),
        pytest.param((WAITS, "0/default_pg nccl:all_reduce=5"), id="other backends are other groups"),
        pytest.param(
            (f"1/_ gloo:barrier=1 waits barrier=1, {DONE}", "", WAITS),
            id="a late rank waits, and a rank for which it may wait has written nothing",
        ),
        pytest.param(
            (
                "0/a gloo:barrier=6 waits barrier=6, 1/b gloo:barrier=5",
                "1/b gloo:barrier=6 waits barrier=6, 0/a gloo:barrier=5",
            ),
            id="two ranks wait for each other",
        ),
        pytest.param((), id="no rank"),
    ],
)
def test_nobody_is_late(texts: tuple[str, ...]) -> None:
    assert late_ranks(of_ranks(*texts), []) is None


def test_the_only_rank_that_has_written_nothing() -> None:
    found = unknown_rank(of_ranks(WAITS, WAITS, "", WAITS))
    assert found is not None
    assert found.ranks == (2,)
    assert found.evidence == (
        "ranks 0-1, 3 wait in all_reduce 6 of group 0 (default_pg). It has not written its collectives, so it may have "
        "entered this one, too"
    )


@pytest.mark.parametrize(
    "texts",
    [
        pytest.param((WAITS,) * 4, id="all have written"),
        pytest.param((WAITS, WAITS, "", ""), id="two have not"),
        pytest.param((WAITS, DONE, ""), id="another does not wait"),
        pytest.param((WAITS, WAITS.replace("waits all_reduce=6", "waits barrier=5"), ""), id="not in one"),
        pytest.param((WAITS, WAITS.replace("0/", "1/"), ""), id="not in one group"),
        pytest.param(("",), id="it is the only rank"),
    ],
)
def test_a_rank_that_has_written_nothing_is_not_named(texts: tuple[str, ...]) -> None:
    assert unknown_rank(of_ranks(*texts)) is None


def test_ten_thousand_ranks_are_compared_in_time() -> None:
    found = late_ranks(of_ranks(*[WAITS] * 9_999, DONE), [])
    assert found is not None
    assert found.ranks == (9_999,)
