"""Lines of a rank and a round, and the stacks in a log."""

import pytest

from tests.unit.cli import samples
from understudy_cli.command_errors import WrongCall
from understudy_cli.log_lines import (
    Collective,
    GroupPosition,
    LogFilter,
    RoundLines,
    Wanted,
    grouped,
    newest_dumps,
    positions,
    ranges,
)
from understudy_cli.pod_logs import pods_to_read
from understudy_cli.reading import read_pod

LOG = [
    "understudy launcher: connected to the sidecar",
    "understudy launcher: round=1763632800.1.0 workers started ranks=2-3/4",
    "[rank 2] zero",
    "[rank 3] zero",
    "understudy launcher: round=1763632800.1.0 worker local_rank=1 failed: ended by SIGKILL",
    "understudy launcher: round=1763632800.2.1 workers started ranks=0-1/4",
    "[rank 0] one",
    "no prefix",
]


def taken(**wanted: int) -> list[str]:
    chosen = LogFilter(Wanted(**wanted))
    return [line for line in LOG if chosen.takes(line)]


def test_all_lines_are_taken_without_a_rank_and_a_round() -> None:
    assert taken() == LOG


def test_a_rank_has_its_lines_and_those_that_say_when_it_started() -> None:
    assert taken(rank=3) == [LOG[1], LOG[3]]


def test_a_round_lasts_until_the_next_one_starts() -> None:
    assert taken(round=0) == LOG[1:5]
    assert taken(round=1) == LOG[5:]


def test_a_rank_in_a_round_in_which_another_pod_held_it_has_no_lines() -> None:
    assert taken(rank=3, round=1) == []


@pytest.mark.attack(
    "B2",
    "a worker writes a line of a launcher with a number of 5,000 digits, or with 10 million ranks",
    before="`understudy logs`, `stacks` and `why` ended with a traceback, or filled the memory",
)
def test_lines_with_numbers_that_no_launcher_writes_are_lines_of_a_worker() -> None:
    started = "understudy launcher: round=1.1.{} workers started ranks={}-{}/8"
    stacks = "understudy launcher: round=1.1.{} worker local_rank=0 rank={} made no step for 300 s: its stacks follow"
    long = "9" * 5_000
    lines = [started.format(*of) for of in ((long, 0, 3), (1, long, 3), (1, 0, long), (1, 0, 9_999_999))]
    lines += [stacks.format(long, 0), stacks.format(1, long)]
    for line in lines:
        assert LogFilter(Wanted()).takes(line)
        assert not LogFilter(Wanted(rank=0)).takes(line)
        assert not LogFilter(Wanted(round=1)).takes(line)
        assert RoundLines.read([line], None) == RoundLines(range(0), ())
        assert newest_dumps([line, '[rank 0]   File "a.py", line 1 in f']) == {}


def test_ranks_with_equal_stacks_are_one_group_and_the_smallest_group_is_first() -> None:
    groups = grouped(newest_dumps(samples.hang_log()).values())
    assert [(group.ranks, group.round, group.since) for group in groups] == [
        ((1,), 4, "300 s since step 120"),
        ((0, 2), 4, "300 s since step 120"),
    ]
    assert len(groups[0].lines) == 3


def test_only_the_newest_stacks_of_a_rank_count() -> None:
    log = samples.hang_log()
    newer = [line.replace(".1.4 ", ".1.6 ").replace("line 9", "line 11") for line in log]
    groups = grouped(newest_dumps([*log, *newer]).values())
    assert [group.round for group in groups] == [6, 6]
    assert "line 11 in read" in groups[0].lines[1]


def test_a_rank_that_wrote_no_stacks_is_in_no_group() -> None:
    announced = [line for line in samples.hang_log() if "[rank 1]" not in line]
    assert 1 not in newest_dumps(announced)


HEAD = "understudy launcher: round=9.1.0 worker local_rank=0 rank=0 made no step for 5 s: its stacks follow"
STACK = ["[rank 0] Current thread 0x7f00 (most recent call first):", '[rank 0]   File "t.py", line 7 in main']
WRITTEN = "0/default_pg gloo:all_reduce=7 waits broadcast=6, 1/_ nccl:barrier=3"


def test_the_collectives_that_a_rank_writes_behind_its_stacks() -> None:
    found = newest_dumps([HEAD, *STACK, f"[rank 1] understudy collectives: {WRITTEN}"])[0]
    assert found.positions is None, "the line is another rank's"
    found = newest_dumps([HEAD, *STACK, f"[rank 0] understudy collectives: {WRITTEN}"])[0]
    assert found.positions == (
        GroupPosition("gloo 0", "group 0 (default_pg)", Collective("all_reduce", 7), Collective("broadcast", 6)),
        GroupPosition("nccl 1", "group 1", Collective("barrier", 3), None),
    )


def test_the_thread_that_writes_them_is_in_no_stack() -> None:
    thread = [
        "[rank 0] Thread 0x7f01 (most recent call first):",
        '[rank 0]   File "/x/understudy_torch/last_collectives.py", line 70 in _report',
    ]
    assert newest_dumps([HEAD, *thread, *STACK])[0].lines == newest_dumps([HEAD, *STACK])[0].lines


@pytest.mark.attack(
    "B2",
    "a worker writes a line of collectives with a number of 5,000 digits, or with 100,000 groups",
    before="no such line was read",
)
@pytest.mark.parametrize(
    "text",
    [
        "",
        "0",
        f"0/_ gloo:all_reduce={'9' * 5_000}",
        f"0/_ gloo:all_reduce=6 waits all_reduce={'9' * 16}",
        f"{'g' * 49}/_ gloo:all_reduce=6",
        "0/_ xccl:all_reduce=6",
        "0/_ gloo:all_reduce=\u0666",
        "0/_ gloo:all_r\u00e9duce=6",
        "0/_ gloo:\x1b[2J=6",
        "0/_ gloo:all_reduce=6, ",
        ", ".join(["0/_ gloo:all_reduce=6"] * 17),
        ", ".join(["0/_ gloo:all_reduce=6"] * 100_000),
    ],
)
def test_a_line_of_collectives_of_another_form_says_nothing(text: str) -> None:
    assert positions(f"understudy collectives: {text}") is None


def test_of_a_large_job_only_logs_that_can_have_the_rank_are_read() -> None:
    # given 101 pods with two ranks each, of which one has ended
    pods = [read_pod(samples.pod(f"w-{rank}", "n", rank=rank)) for rank in range(100)]
    pods.append(read_pod(samples.pod("lost", "n", rank=100, status={"phase": "Failed"})))
    # when rank 7 is asked for
    chosen = pods_to_read(pods, Wanted(7))
    # then its holder is read, and the pod that may have held it before; a small job is read as a whole
    assert [pod.name for pod in chosen] == ["w-3", "lost"]
    assert len(pods_to_read(pods[:100], Wanted(7))) == 100
    with pytest.raises(WrongCall, match=r"the job has 101 pods, .* choose one with --rank"):
        pods_to_read(pods, Wanted(round=5))


@pytest.mark.parametrize(("numbers", "text"), [([], ""), ([3], "3"), ([0, 1, 2, 5], "0-2, 5"), ([4, 2, 3], "2-4")])
def test_ranks_are_written_as_ranges(numbers: list[int], text: str) -> None:
    assert ranges(numbers) == text
