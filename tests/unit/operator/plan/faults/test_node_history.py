"""Which nodes the operator remembers for failing jobs, for how long, and how this is forgotten."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from understudy_operator.plan.facts.cluster_objects import Node
from understudy_operator.plan.facts.status import read_job_status
from understudy_operator.plan.faults import node_history
from understudy_operator.plan.faults.node_history import (
    NO_MEMORY,
    JobRecoveries,
    Memory,
    NodeOffence,
    find_offenders,
    offences_of,
    score,
)
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import Fault

SWAPPED = "it is swapped before it fails"
DRILL = "a drill: restart 1 of 10 within 1 h"

HALF_LIFE_S = 24 * 3600.0
NODES_KEPT = 400
OFFENCES_KEPT = 6

NOW = 1_790_000_000.0
NODES = {"n1": Node("n1", True, created_at=NOW - 1e7)}


def offence(at: float = NOW, job: str = "a", fault: Fault = Fault.NODE, namespace: str = "research") -> NodeOffence:
    return NodeOffence(at, f"uid-{job}", f"{namespace}/{job}", fault, "it went silent")


def remembered(*offences: NodeOffence, now: float = NOW) -> Memory:
    return NO_MEMORY.with_offences([("n1", entry) for entry in offences], now)


def offends(*offences: NodeOffence, node: Node = NODES["n1"], now: float = NOW) -> bool:
    return "n1" in find_offenders(remembered(*offences, now=now), {"n1": node}, now).of("research")


@pytest.mark.parametrize(
    ("offences", "expected"),
    [
        ([offence()], False),
        ([offence(), offence(job="b")], True),
        ([offence(), offence(NOW - 23 * 3600, job="b")], True),
        ([offence(), offence(NOW - 25 * 3600, job="b")], False),
        ([offence(), offence(NOW - 60)], False),  # its weight has decayed a little
        ([offence(), offence(NOW - 60), offence(NOW - 120)], False),  # all from one job
        ([offence(), offence(NOW - 60), offence(NOW - 120, job="b"), offence(NOW - 180, job="c")], True),
        ([offence(fault=Fault.PROCESS, job=job) for job in "ab"], False),
        ([offence(fault=Fault.PROCESS, job=job) for job in "abcd"], True),
        ([offence(fault=Fault.HANG, job=job) for job in "ab"] + [offence(job="c")], True),
        ([offence(NOW - minute, fault=Fault.PROCESS) for minute in range(6)], False),  # a bug of one job's script
    ],
)
def test_a_node_is_a_repeat_offender_by_its_offences_and_their_jobs(offences: list[NodeOffence], expected: bool):
    assert offends(*offences) == expected


def test_the_weight_of_offences_decays():
    known = [offence(job=job) for job in "abcd"]
    assert score(known, NOW) == 4.0
    assert score(known, NOW + HALF_LIFE_S) == 2.0
    assert offends(*known, now=NOW + 1.41 * HALF_LIFE_S)
    assert not offends(*known, now=NOW + 1.42 * HALF_LIFE_S)
    assert remembered(*known).with_offences([], NOW + 8 * 24 * 3600) == NO_MEMORY


def test_offences_from_before_the_nodes_recreation_do_not_count():
    known = [offence(NOW - 10, job) for job in "abc"]
    assert offends(*known)
    assert not offends(*known, node=Node("n1", True, created_at=NOW - 5))


def test_offences_that_an_administrator_has_forgiven_do_not_count():
    known = [offence(NOW - 10, job) for job in "abc"]
    assert not offends(*known, node=Node("n1", True, forgiven_at=NOW - 5))
    assert offends(*known, node=Node("n1", True, forgiven_at=NOW - 60))
    assert not offends(*known, node=Node("n1", True, forgiven_at=float("inf")))


def test_a_node_that_is_gone_is_not_an_offender():
    assert find_offenders(remembered(offence(), offence(job="b")), {}, NOW).of("research") == {}


def test_the_reason_of_an_offender_is_reported():
    result = find_offenders(remembered(*(offence(job=job) for job in "abcd")), NODES, NOW).of("research")["n1"]
    assert (
        result
        == "failed 4 times recently (research/a, research/b, research/c, …), the last time by Node: it went silent"
    )


# Namespaces ----------------------------------------------------------------------------------------------------------

OWN, TESTS, OTHERS = "research", "tests", "others"


def read_offences(namespace: str, *offences: NodeOffence) -> str:
    """Why jobs of that namespace avoid a node; "" if they do not."""
    return find_offenders(remembered(*offences), NODES, NOW).of(namespace).get("n1", "")


@pytest.mark.attack("B1", "kills the workers of its own jobs on a node, again and again", before="refused, too")
def test_kills_in_one_namespace_make_no_node_avoided_for_the_jobs_of_another():
    kills = [offence(job=job, namespace=TESTS) for job in "abcdef"]
    assert read_offences(TESTS, *kills) != ""
    assert read_offences(OWN, *kills) == ""
    assert "n1" in find_offenders(remembered(*kills), NODES, NOW).nodes


def test_offences_reported_from_two_other_namespaces_count():
    kills = [offence(job=job, namespace=TESTS) for job in "abc"]
    others = [offence(job=job, namespace=OTHERS) for job in "de"]
    assert read_offences(OWN, *kills, *others) != ""


def test_offences_reported_from_the_own_and_one_other_namespace_count():
    kills = [offence(job=job, namespace=TESTS) for job in "abc"]
    assert read_offences(OWN, *kills, offence(NOW - 60, job="mine")) != ""
    assert read_offences(OWN, *kills, offence(NOW - 60, "mine", Fault.PROCESS)) == ""
    assert (
        read_offences(OWN, *kills, offence(NOW - 60, "mine", Fault.PROCESS), offence(NOW, "mine-2", Fault.PROCESS))
        != ""
    )


def test_names_and_messages_of_other_namespaces_are_not_shown():
    kills = [offence(NOW - 10, job=job, namespace=TESTS) for job in "abc"]
    mine = [offence(NOW - 20, job="mine"), offence(NOW - 30, job="mine-2")]
    assert read_offences(OWN, *kills, *mine) == (
        "failed 5 times recently (research/mine, research/mine-2, 3 jobs of other namespaces), the last time by Node"
    )
    assert read_offences(TESTS, *kills, *mine) == (
        "failed 5 times recently (tests/a, tests/b, tests/c, 2 jobs of other namespaces), the last time by "
        "Node: it went silent"
    )
    both = [offence(job=job, namespace=TESTS if job in "ab" else OTHERS) for job in "abcd"]
    assert read_offences(OWN, *both) == "failed 4 times recently (4 jobs of other namespaces), the last time by Node"


def test_the_size_of_the_memory_is_limited():
    many = [(f"n{number}", offence(NOW - age)) for number in range(NODES_KEPT + 50) for age in range(10)]
    kept = NO_MEMORY.with_offences([*many, *[("worst", offence(job=job)) for job in "abcdef"]], NOW)
    assert len(kept.by_node) == NODES_KEPT
    assert "worst" in kept.by_node
    assert {len(known) for node, known in kept.by_node.items() if node != "worst"} == {OFFENCES_KEPT}
    assert kept.by_node["n0"][-1].at == NOW


# Statuses, and the ConfigMap -----------------------------------------------------------------------------------------


def a_job(**recovery: Any) -> JobRecoveries:
    cause = {"rank": 8, "pod": "a1", "node": "n1", "message": "its connection went silent"}
    entry = {"fault": "Node", "cause": cause, "detectedAt": micro_time(NOW), "reason": "", **recovery}
    status, _ = read_job_status({"status": {"recoveries": [entry]}})
    return JobRecoveries("u", "research/llm", status.recoveries)


def test_a_recovery_counts_as_an_offence_of_its_causes_node():
    assert list(offences_of(a_job())) == [
        ("n1", NodeOffence(NOW, "u", "research/llm", Fault.NODE, "its connection went silent"))
    ]


@pytest.mark.parametrize(
    "recovery",
    [
        {"fault": "Pod"},
        {"fault": "Later"},
        {"cause": {"pod": "a1", "message": "x"}},
        {"reason": SWAPPED},
        {"reason": f"{SWAPPED}; no spare was available"},
        {"reason": DRILL},
    ],
)
def test_an_empty_signal_is_no_finding(recovery: dict[str, Any]):
    assert list(offences_of(a_job(**recovery))) == []


def test_a_status_that_is_read_again_adds_no_offence():
    once = NO_MEMORY.after([a_job()], NOW)
    assert once.after([a_job(cause={"node": "n1", "message": "in other words"})], NOW) == once


@pytest.mark.parametrize(
    ("revised", "left"),
    [
        ({"cause": {"node": "n2", "message": "silent"}}, {"n2": Fault.NODE}),
        ({"fault": "Process"}, {"n1": Fault.PROCESS}),
        ({"fault": "Pod"}, {}),
        ({"reason": SWAPPED}, {}),
    ],
    ids=["another node", "another fault of the same", "none that counts", "a swap before anything failed"],
)
def test_a_revised_cause_removes_the_offence_of_the_node_that_was_blamed_before(
    revised: dict[str, Any], left: dict[str, Fault]
):
    # given a recovery that blamed n1 when it was read
    known = NO_MEMORY.after([a_job()], NOW)

    # when its coordinator has found the true cause
    known = known.after([a_job(**revised)], NOW)

    # then only the true cause is remembered
    assert {node: entry.fault for node, (entry,) in known.by_node.items()} == left


def test_two_nodes_that_failed_at_the_same_moment_are_both_remembered_after_status_drops_them():
    first, second = a_job(), a_job(cause={"node": "n2", "message": "silent"})
    both = replace(first, recoveries=(*first.recoveries, *second.recoveries))
    known = NO_MEMORY.after([both], NOW).after([both], NOW)
    assert set(known.by_node) == {"n1", "n2"}
    assert known.after([replace(first, recoveries=())], NOW) == known


def test_a_written_memory_is_read_back():
    known = remembered(*(offence(NOW - i, job, Fault.HANG) for i, job in enumerate("ab")))
    assert node_history.decode_memory(node_history.encode_memory(known)) == known


def test_a_full_memory_fits_into_a_config_map_and_the_oldest_offenses_are_not_stored():
    # given the longest names, and reasons with characters of several bytes
    def longest(number: int, at: float) -> NodeOffence:
        uid = f"{number:036}"
        return NodeOffence(at, uid, f"{'n' * 63}/{'j' * 63}", Fault.PROCESS, "故障" * 40)

    nodes = [f"{number:0253}" for number in range(NODES_KEPT)]
    offences = [(node, longest(n, NOW - n)) for node in nodes for n in range(OFFENCES_KEPT)]
    known = NO_MEMORY.with_offences(offences, NOW)
    assert sum(map(len, known.by_node.values())) == 2400
    # when the operator stores them
    data = node_history.encode_memory(known)
    # then the ConfigMap has at most the 1 MiB that the API server accepts
    assert sum(len(key) + len(text.encode()) for key, text in data.items()) < 1 << 20
    # and each node has lost only its oldest offenses
    stored = node_history.decode_memory(data).by_node
    newest = {node: own[: len(stored[node])] for node, own in _newest_first(known.by_node).items()}
    assert newest == _newest_first(stored)
    lost = {len(known.by_node[node]) - len(stored[node]) for node in nodes}
    assert max(lost) - min(lost) <= 1
    assert min(lost) < 3


def _newest_first(by_node: Mapping[str, tuple[NodeOffence, ...]]) -> dict[str, tuple[NodeOffence, ...]]:
    return {node: own[::-1] for node, own in by_node.items()}


@pytest.mark.parametrize(
    "text", ["", "{", "{}", "5", "[[1]]", '[["x","u","j","Node",""]]', '[[1.0,"u","j","Later",""]]']
)
def test_broken_entries_are_ignored(text: str):
    assert node_history.decode_memory({"n1": text}).by_node.get("n1", ()) == ()
