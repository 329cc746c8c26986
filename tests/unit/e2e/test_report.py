"""The reports of a training on shared storage: those of rank 0, and the steps of all ranks by pod."""

from __future__ import annotations

import json
from pathlib import Path

from tests.e2e.report import ALL_RANKS, Entry, read_report
from tests.e2e.truth import Step, steps_by_pod

FIRST, NEXT = (1796083623, 1, 0), (1796083623, 1, 10)


def write(folder: Path, token: str, rank: int, host: str, *steps: tuple[int, float]) -> None:
    events = [("resumed", steps[0][0] - 1, None, steps[0][1] - 0.1), *(("step", x, 2.5, at) for x, at in steps)]
    lines = [
        {"event": event, "step": step, "loss": loss, "round": token, "host": host, "time": at}
        for event, step, loss, at in events
    ]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    (folder / f"report.{token}.{rank}.jsonl").write_text(text + '{"event": "st')


def test_the_report_is_that_of_rank_0_and_the_steps_are_those_of_all_ranks_by_pod(tmp_path: Path) -> None:
    # given three ranks of two pods, of which rank 0 has not made the last step before a fault
    write(tmp_path, "1796083623.1.0", 0, "ddp-0", (9, 28.5))
    write(tmp_path, "1796083623.1.0", 1, "ddp-0", (9, 28.6))
    write(tmp_path, "1796083623.1.0", 2, "ddp-1", (9, 28.4), (10, 28.9))
    write(tmp_path, "1796083623.1.10", 0, "ddp-0", (10, 30.5))
    write(tmp_path, "1796083623.1.10", 10, "ddp-1", (10, 30.6))
    # then the report has the events of rank 0, in order, and no incomplete line
    assert read_report(tmp_path) == [
        Entry("resumed", 8, None, FIRST, 28.4, "ddp-0"),
        Entry("step", 9, 2.5, FIRST, 28.5, "ddp-0"),
        Entry("resumed", 9, None, NEXT, 30.4, "ddp-0"),
        Entry("step", 10, 2.5, NEXT, 30.5, "ddp-0"),
    ]
    # and each pod has the steps of its ranks
    assert steps_by_pod(read_report(tmp_path, ALL_RANKS)) == {
        "ddp-0": [Step(FIRST, 28.5, 9), Step(FIRST, 28.6, 9), Step(NEXT, 30.5, 10)],
        "ddp-1": [Step(FIRST, 28.4, 9), Step(FIRST, 28.9, 10), Step(NEXT, 30.6, 10)],
    }
