"""The benchmark of large jobs: its members play whole rounds with a real coordinator, and its table has the medians."""

from __future__ import annotations

import pytest

from benchmarks.records import Record
from benchmarks.scale.__main__ import measure
from benchmarks.scale.members import Closed, Known, Members
from benchmarks.scale.table import cost_rows
from benchmarks.snapshot.rounds import measure_rounds
from benchmarks.snapshot.trainings import WITHOUT
from understudy_protocol.frames import CloseCode, close_frame

SIZE = 16


def test_all_members_take_part_in_the_rounds_of_one_coordinator() -> None:
    values = {sample.case: sample.values for sample in measure("rounds", SIZE, 0)}
    assert list(values) == ["first-round", "voter-config", "rest", "worker-failed", "member-lost"]
    # then each member sends its head, Hello, proof, Join, Ack, Started and first step
    assert values["first-round"]["messages_in"] >= (SIZE + 1) * 4 + SIZE * 3
    # and a majority acknowledges the voters before they are committed
    assert values["voter-config"]["messages_in"] > (SIZE + 2) / 2
    assert values["worker-failed"]["messages_in"] >= 1 + SIZE * 3
    assert values["member-lost"]["messages_in"] >= SIZE * 3
    # and answers two heartbeats in ten seconds
    assert values["rest"]["messages_in"] >= 2 * (SIZE + 1)
    for used in values.values():
        assert min(used["core_s"], used["wire_s"], used["mb_out"], used["peak_rss_mb"]) > 0


def test_members_with_snapshots_report_them_and_a_spare_fetches_a_copy() -> None:
    # given a worker that fails, and then a member that is lost
    with_snapshots, without = (
        {sample.case: sample.values for sample in measure(session, SIZE, 0)}
        for session in ("restarts-with-snapshots", "restarts")
    )
    assert list(with_snapshots) == list(without) == ["worker-failed", "member-lost"]
    # then in both rounds each member gets the choice of a snapshot. In the first one, the waiting spare also gets its
    # plan, and answers. In the second one, the spare has ranks, and is asked to fetch a copy
    for case in without:
        assert with_snapshots[case]["messages_out"] - without[case]["messages_out"] == SIZE + 1
        assert with_snapshots[case]["messages_in"] - without[case]["messages_in"] == 1


def test_the_cost_of_rounds_with_snapshots_is_their_cpu_time() -> None:
    for system in ("understudy", WITHOUT):
        samples = list(measure_rounds(system, 2, SIZE))
        assert [(x.system, x.case, x.size, x.run) for x in samples] == [
            (system, "round-in-place", SIZE, 2),
            (system, "round-with-spare", SIZE, 2),
        ]
        assert all(0 < x.values["cpu_s"] < 5 for x in samples)


def test_all_members_elect_another_coordinator_and_join_it() -> None:
    (sample,) = measure("failover", SIZE, 3)
    assert (sample.case, sample.size, sample.run) == ("failover", SIZE, 3)
    # then each member sends its head, Hello, proof, Join, and a majority its vote before the others
    assert sample.values["messages_in"] >= SIZE * 4 + SIZE // 2 + 1
    assert sample.values["first_welcome_s"] <= sample.values["seconds"]


def test_a_connection_that_the_coordinator_closes_ends_the_run_with_its_reason() -> None:
    # given a member that has called
    members = Members(SIZE, "10.0.0.1", Known())
    members.call(1, 1)
    ((number, head),) = members.exchange([])
    assert (number, head[:4]) == (1, b"GET ")
    # when the coordinator accepts the call, and then ends it
    members.exchange([(1, b"HTTP/1.1 101 Switching Protocols\r\n\r\n")])
    with pytest.raises(Closed, match="the coordinator has closed the connection of member 1: too many members"):
        members.exchange([(1, close_frame(CloseCode.POLICY, "too many members", masked=False))])


def test_a_member_whose_call_was_ended_without_an_answer_calls_again() -> None:
    # given a member that has sent its head and its Hello
    members = Members(SIZE, "10.0.0.1", Known())
    members.call(1, 1)
    members.exchange([])
    ((_, hello),) = members.exchange([(1, b"HTTP/1.1 101 Switching Protocols\r\n\r\n")])
    assert not hello.startswith(b"GET ")
    # when the coordinator ends the connection
    ((number, head),) = members.exchange([(1, b"")])
    # then the member calls again
    assert (number, head[:4]) == (1, b"GET ")
    assert members.progress.called_again == 1


def test_what_a_member_would_send_next_is_lost_with_its_call() -> None:
    members = Members(SIZE, "10.0.0.1", Known())
    members.call(1, 1)
    members.exchange([])
    # given an answer and the end of the connection, which arrive together
    batch = members.exchange([(1, b"HTTP/1.1 101 Switching Protocols\r\n\r\n"), (1, b"")])
    # then its Hello is not sent
    ((number, head),) = batch
    assert (number, head[:4]) == (1, b"GET ")


def test_the_table_has_a_row_for_each_case_and_size() -> None:
    records = [
        Record("understudy", "rest", size, metric, "", value, value, value, 3)
        for size, metric, value in (
            (1000, "core_s", 0.02),
            (1000, "wire_s", 0.03),
            (1000, "messages_out", 12_000.0),
            (100, "core_s", 0.004),
            (100, "wire_s", 0.001),
        )
    ]
    head, small, large = cost_rows(records)
    found = [dict(zip(head, row, strict=True)) for row in (small, large)]
    assert [x["members"] for x in found] == ["100", "1,000"]
    assert [x["us_per_member"] for x in found] == ["50", "50"]
    assert [x["messages_out"] for x in found] == ["", "12,000"]
