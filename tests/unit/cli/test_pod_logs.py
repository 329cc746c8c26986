"""Logs of several pods, merged and followed, against a server whose answers the test writes."""

import json
import threading
from typing import Any

import pytest

from tests.unit.cli import samples
from tests.unit.cli.server import Answer, scripted
from understudy_cli.command_errors import NoAnswer
from understudy_cli.facts import Recovery
from understudy_cli.following import Collection, Followed
from understudy_cli.log_lines import Wanted
from understudy_cli.pod_logs import FollowedLogs, PodLogLine, lines_around, read_lines
from understudy_cli.reading import read_pod

PODS = "/api/v1/namespaces/team-a/pods"


def log(pod: str) -> str:
    return f"{PODS}/{pod}/log"


def at(second: int, text: str) -> str:
    return f"2026-11-20T12:00:{second:02d}.000000000Z {text}"


def pods(*raws: dict[str, Any]) -> dict[str, list[Answer]]:
    return {PODS: [Answer({"metadata": {"resourceVersion": "1"}, "items": list(raws)}), Answer(stays=True)]}


def follow(answers: dict[str, list[Answer]], wanted: Wanted, tail: int = -1) -> tuple[list[str], list[dict[str, Any]]]:
    """The printed lines, and the queries for the log of pod a."""
    lines: list[PodLogLine] = []
    with scripted(answers) as server:
        followed = Followed(server.api(), (Collection("pods", PODS, read=read_pod),))
        FollowedLogs(server.api(), followed, "pods", wanted, tail).run(lines.append)
        return [line.text for line in lines], server.queries(log("a"))


ENDED = {"phase": "Succeeded"}


def test_lines_of_several_pods_are_in_the_order_of_time_and_the_newest_are_kept() -> None:
    answers = {
        log("a"): [Answer("\n".join([at(1, "one"), at(3, "three")]))],
        log("b"): [Answer("\n".join([at(2, "two"), at(4, "four")]))],
    }
    found = [read_pod(samples.pod(name, "n", rank=rank)) for rank, name in enumerate("ab")]
    with scripted(answers) as server:
        lines, _ = read_lines(server.api(), found, Wanted(), 3)
    assert [line.text for line in lines] == ["two", "three", "four"]


def test_a_pod_without_a_log_does_not_hide_the_logs_of_others() -> None:
    answers = {log("a"): [Answer({"message": "waiting to start"}, 400)], log("b"): [Answer(at(2, "two"))]}
    found = [read_pod(samples.pod(name, "n", rank=rank)) for rank, name in enumerate("ab")]
    with scripted(answers) as server:
        lines, _ = read_lines(server.api(), found, Wanted(), -1)
        assert [line.text for line in lines] == ["two"]
        with pytest.raises(NoAnswer, match="waiting to start"):
            read_lines(server.api(), found[:1], Wanted(), -1)


def test_followed_logs_end_with_their_pods() -> None:
    answers = pods(samples.pod("a", "n", rank=0, status=ENDED)) | {log("a"): [Answer(at(1, "[rank 0] last"))]}
    assert follow(answers, Wanted())[0] == ["[rank 0] last"]


def test_a_connection_that_is_lost_continues_after_the_last_line() -> None:
    # given a log whose connection breaks after a line, and then has this line again, and a new one
    first, second = at(1, "[rank 0] one"), at(2, "[rank 0] two")
    broken = Answer(lines=(first,), breaks=True)
    answers = pods(samples.pod("a", "n", rank=0, status=ENDED)) | {
        log("a"): [broken, Answer("\n".join([first, second]))]
    }
    # when it is followed
    lines, queries = follow(answers, Wanted(), tail=5)
    # then each line is printed once
    assert lines == ["[rank 0] one", "[rank 0] two"]
    assert [query.get("tailLines") for query in queries] == [["5"], None]
    assert queries[1]["sinceTime"] == ["2026-11-20T12:00:01.000000000Z"]


def test_a_missing_right_to_read_logs_ends_the_command() -> None:
    answers = pods(samples.pod("a", "n", rank=0)) | {log("a"): [Answer({"message": "pods/log is forbidden"}, 403)]}
    with pytest.raises(NoAnswer, match="pods/log is forbidden"):
        follow(answers, Wanted())


def test_only_pods_that_hold_the_rank_are_followed() -> None:
    answers = pods(samples.pod("a", "n", rank=0, status=ENDED), samples.pod("b", "n", rank=1, status=ENDED))
    answers[log("a")] = [Answer("\n".join([at(1, "[rank 0] no"), at(2, "[rank 1] yes")]))]
    assert follow(answers, Wanted(rank=1))[0] == ["[rank 1] yes"]


def around(fault: Recovery, answers: dict[str, list[Answer]]) -> tuple[dict[str, list[str]], list[dict[str, Any]]]:
    """The lines of pods a and b, and the queries for the log of pod a."""
    found = [read_pod(samples.pod(name, "n", rank=rank)) for rank, name in enumerate("ab")]
    with scripted(answers) as server:
        return lines_around(server.api(), found, fault), server.queries(log("a"))


def test_the_lines_around_a_fault_are_those_from_a_minute_before_it_until_a_minute_after_its_recovery() -> None:
    # given a fault at 12:00:00 whose recovery ended a second later
    fault = Recovery("Hang", detected_at=samples.NOW, resumed_at=samples.NOW + 1)
    answers = {
        log("a"): [Answer("\n".join([at(1, "one"), at(59, "two"), "2026-11-20T12:01:01.500000000Z later"]))],
        log("b"): [Answer(at(2, "other"))],
    }
    # when the lines around it are read
    lines, queries = around(fault, answers)
    # then they end a minute after the recovery, and the server is asked for none from before
    assert lines == {"a": ["one", "two"], "b": ["other"]}
    assert [query["sinceTime"] for query in queries] == [["2026-11-20T11:59:00Z"]]


def test_the_lines_around_a_fault_without_a_recovery_have_no_end() -> None:
    answers = {log("a"): [Answer("2026-11-20T14:00:00.000000000Z late")], log("b"): [Answer(at(2, "other"))]}
    assert around(Recovery("Hang", detected_at=samples.NOW), answers)[0] == {"a": ["late"], "b": ["other"]}


def test_a_log_that_is_too_long_around_a_fault_is_no_evidence() -> None:
    """A part of it would look like the log of a rank that wrote no error."""
    line = at(1, "x" * 4_000)
    answers = {log("a"): [Answer("\n".join([line] * 4_200))], log("b"): [Answer(at(2, "other"))]}
    assert around(Recovery("Hang", detected_at=samples.NOW), answers)[0] == {"b": ["other"]}


def test_an_unreadable_log_does_not_hide_the_others_around_a_fault() -> None:
    fault = Recovery("Hang", detected_at=samples.NOW)
    gone = Answer({"message": "not found"}, 404)
    assert around(fault, {log("a"): [gone], log("b"): [Answer(at(2, "other"))]})[0] == {"b": ["other"]}
    with pytest.raises(NoAnswer, match="not found"):
        around(fault, {log("a"): [gone], log("b"): [gone]})


def test_lines_of_nodes_in_other_time_zones_are_in_the_order_of_time() -> None:
    """A kubelet writes the time zone of its node."""
    answers = {
        log("a"): [Answer("2026-11-20T20:00:02.000000002+08:00 three\n2026-11-20T20:00:04.000000000+08:00 five")],
        log("b"): [Answer("\n".join([at(1, "one"), "2026-11-20T12:00:02.000000001Z two"]))],
        log("c"): [Answer("2026-11-20T07:00:03.000000000-05:00 four")],
    }
    found = [read_pod(samples.pod(name, "n", rank=rank)) for rank, name in enumerate("abc")]
    with scripted(answers) as server:
        lines, _ = read_lines(server.api(), found, Wanted(), -1)
    assert [line.text for line in lines] == ["one", "two", "three", "four", "five"]


def test_the_lines_around_a_fault_are_found_in_a_log_of_another_time_zone() -> None:
    # given a fault at 12:00:00 whose recovery ended a second later, and a node whose time is 8 hours ahead
    fault = Recovery("Hang", detected_at=samples.NOW, resumed_at=samples.NOW + 1)
    lines = "2026-11-20T20:00:01.000000000+08:00 one\n2026-11-20T20:01:01.500000000+08:00 later"
    # then the lines are those of the same minute
    assert around(fault, {log("a"): [Answer(lines)], log("b"): [Answer(at(2, "other"))]})[0] == {
        "a": ["one"],
        "b": ["other"],
    }


def test_a_log_that_has_ended_takes_no_place_among_the_followed_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a limit of one log, and two pods: the first one has ended
    monkeypatch.setattr("understudy_cli.pod_logs.MOST_PODS", 1)
    first, second = samples.pod("a", "n", rank=0, status=ENDED), samples.pod("b", "n", rank=0)
    read, ended = threading.Event(), samples.pod("b", "n", rank=0, status=ENDED)

    def replaced() -> str:
        """The second pod appears when the log of the first was read."""
        assert read.wait(20)
        events = [{"type": "ADDED", "object": second}, {"type": "MODIFIED", "object": ended}]
        return "\n".join(map(json.dumps, events))

    answers = {
        PODS: [
            Answer({"metadata": {"resourceVersion": "1"}, "items": [first]}),
            Answer(make=replaced),
            Answer(stays=True),
        ],
        log("a"): [Answer(at(1, "first"))],
        log("b"): [Answer(at(2, "second"))],
    }
    lines: list[str] = []

    def show(line: PodLogLine) -> None:
        lines.append(line.text)
        _, *readers = [x for x in threading.enumerate() if x not in before and x.name.endswith("(_follow)")]
        for reader in readers:  # the first one watches the pods
            reader.join(20)
        read.set()

    # when the logs are followed
    before = set(threading.enumerate())
    with scripted(answers) as server:
        followed = Followed(server.api(), (Collection("pods", PODS, read=read_pod),))
        FollowedLogs(server.api(), followed, "pods", Wanted(), -1).run(show)
    # then both are printed
    assert lines == ["first", "second"]
