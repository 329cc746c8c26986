"""Tracebacks of many workers: each is shown once."""

from __future__ import annotations

from understudy_local.tracebacks import Tracebacks

HEAD = "Traceback (most recent call last):"
FRAMES = ['  File "train.py", line 3, in <module>', "    load()", "    ^^^^^^"]


def show(tracebacks: Tracebacks, rank: int, *texts: str) -> list[str]:
    return [shown for text in texts for shown in tracebacks.feed(f"[rank {rank}] {text}")]


def test_the_first_traceback_is_shown_in_full_and_equal_ones_in_one_line() -> None:
    tracebacks = Tracebacks()
    shown = show(tracebacks, 0, HEAD, *FRAMES, "ValueError: no data for rank 0", "bye")
    assert shown == [f"[rank 0] {text}" for text in (HEAD, *FRAMES, "ValueError: no data for rank 0", "bye")]
    assert show(tracebacks, 1, HEAD, *FRAMES, "ValueError: no data for rank 1", "bye") == [
        "[rank 1] ValueError: no data for rank 1 (its traceback is above)",
        "[rank 1] bye",
    ]


def test_another_exception_or_another_line_is_another_traceback() -> None:
    tracebacks = Tracebacks()
    show(tracebacks, 0, HEAD, *FRAMES, "ValueError: no data")
    assert len(show(tracebacks, 0, HEAD, *FRAMES, "KeyError: 'lr'")) == 5
    assert len(show(tracebacks, 0, HEAD, *FRAMES[:1], "ValueError: no data")) == 3


def test_tracebacks_of_two_ranks_do_not_mix() -> None:
    tracebacks = Tracebacks()
    assert show(tracebacks, 0, HEAD, FRAMES[0]) == []
    assert show(tracebacks, 1, HEAD, FRAMES[0]) == []
    assert show(tracebacks, 0, "ValueError: a") == [
        f"[rank 0] {HEAD}",
        f"[rank 0] {FRAMES[0]}",
        "[rank 0] ValueError: a",
    ]
    assert show(tracebacks, 1, "ValueError: b") == ["[rank 1] ValueError: b (its traceback is above)"]


def test_other_lines_are_shown_at_once() -> None:
    assert Tracebacks().feed("[rank 0]   indented") == ["[rank 0]   indented"]
    assert Tracebacks().feed("not of a rank") == ["not of a rank"]


def test_a_traceback_that_is_cut_off_is_shown_at_the_end() -> None:
    tracebacks = Tracebacks()
    show(tracebacks, 0, HEAD, FRAMES[0])
    assert tracebacks.rest() == [f"[rank 0] {HEAD}", f"[rank 0] {FRAMES[0]}"]
    assert tracebacks.rest() == []


def test_an_endless_traceback_is_shown_in_full() -> None:
    tracebacks = Tracebacks()
    assert len(show(tracebacks, 0, HEAD, *["  endless"] * 999)) == 1000
    assert show(tracebacks, 0, "  endless") == ["[rank 0]   endless"]
