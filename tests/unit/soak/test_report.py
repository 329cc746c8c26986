"""The soak's report counts its faults by kind, and has the inputs of each number."""

from __future__ import annotations

import json

from tests.soak.report import check_rows, fault_rows, run_rows, summary, with_run

VIOLATION = {"event": "violation", "number": 2, "invariant": "truth", "sentences": ["seconds: …"], "evidence": "/e/2"}
ENTRIES = [
    {"event": "began", "seed": 4, "commit": "30d9375", "network": "netem"},
    {"event": "drawn", "number": 0, "kind": "pod"},
    {"event": "outcome", "number": 0, "kind": "pod", "result": "made", "seconds": 1800.0, "paused_s": {"launcher": 1.5},
     "checked": ["losses", "truth"], "answers": 12},
    {"event": "life", "job": "launcher", "steps": 801},
    {"event": "outcome", "number": 1, "kind": "clock", "result": "skipped", "seconds": 60.0, "reason": "no compiler"},
    {"event": "began", "seed": 4, "commit": "41e8486", "network": "netem"},
    {"event": "outcome", "number": 2, "kind": "pod", "result": "made", "seconds": 1740.0,
     "paused_s": {"launcher": 0.5, "torchrun": 4.0}, "checked": ["losses"]},
    VIOLATION,
]  # fmt: skip


def test_faults_are_counted_by_kind_with_the_pauses_that_they_caused() -> None:
    result = summary(ENTRIES)
    assert result["hours"] == 1.0
    assert result["commits"] == ["30d9375", "41e8486"]
    assert result["faults"]["pod"]["paused_s"] == [0.5, 1.5, 4.0]
    assert result["faults"]["clock"]["skipped_because"] == ["no compiler"]
    assert result["violations"] == [VIOLATION]
    rows = {row[0]: row[1:] for row in fault_rows([json.loads(json.dumps(result))])}
    assert rows["pod"] == ("2", "0", "3", "1.50", "4.00", "4.00")
    assert rows["clock"] == ("0", "1", "0", "", "", "")
    assert rows["all"] == ("2", "1", "3", "1.50", "4.00", "4.00")
    assert len(rows) == 16


def test_each_invariant_has_its_checks_and_violations() -> None:
    rows = check_rows([summary(ENTRIES)])
    assert [row[1:] for row in rows[1:]] == [
        ("2", "0"), ("0", "0"), ("0", "0"), ("1", "1"), ("0", "0"), ("0", "0"), ("0", "0"), ("0", "0"),
    ]  # fmt: skip


def test_a_run_has_its_pieces_and_trainings_and_the_runs_have_a_sum() -> None:
    one = {**summary(ENTRIES), "seed": 5, "commits": ["77a0310"]}
    rows = run_rows([summary(ENTRIES), one])
    assert rows[1:] == [
        ("4", "30d9375, 41e8486", "1.00", "2", "2", "1", "801", "12", "netem"),
        ("5", "77a0310", "1.00", "2", "2", "1", "801", "12", "netem"),
        ("all", "", "2.00", "4", "4", "2", "1,602", "24", ""),
    ]


def test_the_tables_sum_up_the_faults_pauses_and_checks_of_all_runs() -> None:
    runs = [summary(ENTRIES), {**summary(ENTRIES[:3]), "seed": 5}]
    faults = {row[0]: row[1:] for row in fault_rows(runs)}
    assert faults["pod"] == ("3", "0", "4", "1.50", "4.00", "4.00")
    assert faults["all"] == ("3", "1", "4", "1.50", "4.00", "4.00")
    checks = check_rows(runs)
    assert checks[1][1:] == ("3", "0")  # losses
    assert checks[4][1:] == ("2", "1")  # truth


def test_a_run_replaces_the_earlier_run_of_its_seed_only() -> None:
    runs = with_run([{"seed": 5, "hours": 2}, {"seed": 4, "hours": 1}], {"seed": 5, "hours": 3})
    assert runs == [{"seed": 4, "hours": 1}, {"seed": 5, "hours": 3}]


def test_processes_of_two_pieces_have_no_common_trend() -> None:
    def samples(at: float, value: float) -> dict[str, object]:
        return {"event": "samples", "at": at, "values": [["launcher sidecar", "MB", value]]}

    began = {"event": "began", "seed": 4, "commit": "30d9375", "network": "netem"}
    first, second = [samples(60.0 * n, 40.0) for n in range(40)], [samples(3600 + 60.0 * n, 90.0) for n in range(40)]
    assert summary([began, *first, began, *second])["steepest"]["MB"]["per_hour"] == 0.0
    of_one = summary([began, *first, *second])
    assert of_one["steepest"]["MB"]["per_hour"] > 40
    # and a leak is a violation
    assert [(entry["invariant"], entry["evidence"]) for entry in of_one["violations"]] == [
        ("leaks", "soak/seed-4.jsonl")
    ]


def test_a_soak_that_was_stopped_while_it_prepared_its_jobs_has_no_pieces() -> None:
    assert summary([])["pieces"] == 0
