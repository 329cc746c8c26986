"""Every table of the documentation is generated from results; the text around them stays unchanged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from benchmarks.docs import PAGES, UnknownTable, rewritten
from benchmarks.nights import Night, append_night

CHECKOUT = Path(__file__).resolve().parents[3]
TABLE = "| case | members | metric | understudy |\n| --- | --- | --- | --- |\n"


def page(kind: str, table: str = "old\n", name: str = "rendezvous") -> str:
    return f"before\n<!-- {name}:{kind} -->\n{table}<!-- end -->\nafter, with <!-- end -->\n"


def session(seconds: float, values: list[float], **facts: str) -> dict[str, object]:
    samples = [
        {"system": "understudy", "case": "rest", "size": 1, "run": run, "values": {"rss_mb": value}}
        for run, value in enumerate(values)
    ]
    known = {"command": "make it", "commit": "abc", "date": "2026-11-25", "cores": "2", **facts}
    return {**known, "seconds": seconds, "samples": samples}


@pytest.fixture
def results(tmp_path: Path) -> Path:
    sessions = [session(61.0, [40.0]), session(90.0, [39.0, 42.0], command="make the rest", cores="4")]
    (tmp_path / "rendezvous.json").write_text(json.dumps({"sessions": sessions}))
    return tmp_path


def test_a_table_is_generated_from_the_samples_of_all_sessions(results: Path) -> None:
    new = page("records", f"{TABLE}| rest | 1 | rss_mb | 40 [39 … 42] (3) |\n")

    assert rewritten(page("records"), results) == new
    assert rewritten(new, results) == new


def test_goals_have_tables_too(results: Path) -> None:
    assert "| rest | 1 | rss_mb | ≤ 45 | 40 | met |" in rewritten(page("goals"), results)


def test_the_machine_names_every_session_and_sums_their_minutes(results: Path) -> None:
    assert rewritten(page("machine"), results) == page(
        "machine",
        "|  |  |\n| --- | --- |\n"
        "| command | `make it` (2026-11-25, commit abc) |\n"
        "| then | `make the rest` (2026-11-25, commit abc) |\n"
        "| minutes | 2.5 |\n"
        "| cores | 2; 4 |\n",
    )


def test_the_machine_names_the_cases_and_systems_of_the_plan_without_numbers(tmp_path: Path) -> None:
    # given a recovery benchmark in which two cases have run, one of them without one of its systems
    names = ["understudy", "torchrun", "torchrun-optout", "nvrx", "nvrx-heartbeats"]
    samples = [
        {"system": system, "case": "worker", "size": 4, "run": 0, "values": {"first_step_s": 1.0}} for system in names
    ]
    samples += [
        {"system": system, "case": "spare-exit", "size": 4, "run": 0, "values": {"exit_s": 1.0}}
        for system in ("understudy", "nvrx")
    ]
    (tmp_path / "recovery.json").write_text(json.dumps({"sessions": [session(1.0, []) | {"samples": samples}]}))

    assert (
        "| not measured | cases worker-grace, worker-grace-save, worker-store-apart, node-power-off, "
        "node-power-off-store-apart, coordinator-power-off, sigterm-faulty; systems understudy-torchrun, "
        "understudy-no-zygote, torchrun-tuned, nvrx-inprocess; spare-exit of torchrun-optout |\n"
    ) in rewritten(page("machine", name="recovery"), tmp_path)


def test_nights_of_simulation_come_from_their_committed_file(tmp_path: Path) -> None:
    empty = "<!-- simulation:nights -->\n<!-- end -->"
    none = "<!-- simulation:nights -->\nNone yet: `make test-all` writes benchmarks/results/nights.json.\n<!-- end -->"
    assert rewritten(empty, tmp_path) == none
    # and a table that was written by hand is replaced
    assert rewritten(empty.replace("\n", "\n| 2026-11-25 | operator |\n", 1), tmp_path) == none
    append_night(tmp_path / "nights.json", Night("2026-11-25", "data plane", "41e8486", 0, 700, 120.0))
    row = "| 2026-11-25 | data plane | 41e8486 | 0 | 700 | 2 | none |\n"
    assert row in rewritten(empty, tmp_path)


def test_the_headline_states_how_each_fault_is_caused_and_when_it_was_measured(tmp_path: Path) -> None:
    samples = [
        {"system": "understudy", "case": "worker", "size": 4, "run": 0, "values": {"first_all_reduce_s": 0.123}},
        {
            "system": "nvrx",
            "case": "worker",
            "size": 4,
            "run": 0,
            "unfinished": "no",
            "metrics": ["first_all_reduce_s"],
            "after_s": 60.0,
        },
    ]
    (tmp_path / "recovery.json").write_text(json.dumps({"sessions": [session(1.0, []) | {"samples": samples}]}))

    assert rewritten(page("headline", name="recovery"), tmp_path) == page(
        "headline",
        "| fault (measured 2026-11-25) | Understudy | NVRx ft_launcher |\n| --- | --- | --- |\n"
        "| SIGKILL to one worker | 0.123 s | not within 60 s (1 try) |\n",
        name="recovery",
    )


@pytest.mark.parametrize("kind", ["machine", "costs", "extrapolation", "records"])
def test_tables_of_fleets_state_until_there_are_results_how_to_get_them(tmp_path: Path, kind: str) -> None:
    none = "None yet: `make bench-fleet` writes benchmarks/results/fleet.json.\n"
    assert rewritten(page(kind, name="fleet"), tmp_path) == page(kind, none, name="fleet")
    (tmp_path / "fleet.json").write_text(json.dumps({"sessions": [session(60.0, [40.0])]}))
    assert none not in rewritten(page(kind, none, name="fleet"), tmp_path)


@pytest.mark.parametrize(
    ("name", "kind"), [("rendezvous", "figures"), ("other", "records"), ("rendezvous", "headline")]
)
def test_a_marker_without_a_generator_is_an_error(results: Path, name: str, kind: str) -> None:
    with pytest.raises(UnknownTable, match=f"{name}:{kind}"):
        rewritten(page(kind, name=name), results)


def test_a_table_of_a_benchmark_without_results_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UnknownTable, match="make bench-rendezvous"):
        rewritten(page("records"), tmp_path)


@pytest.mark.parametrize("file", ["docs/contributors/benchmarks.md", "docs/explanation/comparison.md", "README.md"])
def test_no_number_of_a_table_was_edited_by_hand(file: str) -> None:
    text = (CHECKOUT / file).read_text()
    assert CHECKOUT / file in PAGES
    assert rewritten(text, CHECKOUT / "benchmarks" / "results") == text, "run `make bench-docs`"


def test_every_benchmark_has_its_machine_and_its_numbers_on_the_page() -> None:
    page = CHECKOUT / "docs" / "contributors" / "benchmarks.md"
    markers = re.findall(r"<!-- ([a-z]+):(machine|records|costs) -->", page.read_text())

    names = {
        *("rendezvous", "recovery", "operator", "pool", "webhook", "dashboard"),
        *("injection", "nodes", "hostile", "step", "rollout", "detection", "snapshot"),
    }
    large_jobs = {("scale", "machine"), ("scale", "costs")}  # the records have too many rows
    fleets = {("fleet", "machine"), ("fleet", "costs"), ("fleet", "records")}
    assert {(name, kind) for name in names for kind in ("machine", "records")} | large_jobs | fleets == set(markers)
