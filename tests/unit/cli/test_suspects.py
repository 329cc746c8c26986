"""The rank that the others waited for, from the logs: at a hang by its stack, at a timeout by its missing traceback."""

import pytest

from understudy_cli.facts import Cause, Recovery
from understudy_cli.views.suspects import Logs, Source, suspects

IN_ALL_REDUCE = (
    '  File "/torch/distributed/distributed_c10d.py", line 3252 in all_reduce',
    '  File "t.py", line 71 in main',
)
IN_OTHER = (
    '  File "/torch/distributed/distributed_c10d.py", line 3252 in all_reduce',
    '  File "t.py", line 70 in main',
)
IN_DATA = ('  File "/torch/utils/data/dataloader.py", line 1291 in _try_get_data', '  File "t.py", line 66 in main')
IN_BACKWARD = ('  File "/torch/autograd/graph.py", line 824 in backward', '  File "t.py", line 80 in main')
TIMEOUT = (
    "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:78] Timed out waiting 4000ms for recv operation to complete"
)


def hang() -> Recovery:
    return Recovery("Hang", round=1, cause=Cause(0, message="no step for 5 s; slowest: rank 0 at step 4 (others: 4)"))


#: As a rank that waits in all_reduce 6 writes it, and one that has completed 5.
WAITS, DONE = "0/default_pg gloo:all_reduce=6 waits all_reduce=6", "0/default_pg gloo:all_reduce=5"


def of_hang(*stacks: tuple[str, ...], round_number: int = 0, collectives: tuple[str, ...] = ()) -> Logs:
    """Logs of pods of two ranks each, whose workers have written these stacks, and their collectives unless empty."""
    logs: dict[Source, list[str]] = {}
    for rank, stack in enumerate(stacks):
        lines = logs.setdefault(Source(f"pod-{rank // 2}", f"node-{rank // 2}"), [])
        head = f"understudy launcher: round=9.1.{round_number} worker local_rank={rank % 2} rank={rank} made no step"
        lines += [f"{head} for 5 s since step 4: its stacks follow", f"[rank {rank}] Current thread 0x7f0{rank} (most"]
        lines += [f"[rank {rank}] {frame}" for frame in stack]
        if any(collectives[rank : rank + 1]):
            lines.append(f"[rank {rank}] understudy collectives: {collectives[rank]}")
    return logs


def of_timeout(*with_traceback: int, ranks: int = 4) -> Logs:
    """Logs of pods of two ranks each. These ranks have written a traceback in round 0."""
    logs = {}
    for first in range(0, ranks, 2):
        lines = [f"understudy launcher: round=9.1.0 workers started ranks={first}-{first + 1}/{ranks}"]
        lines += [f"[rank {rank}] step 3, loss 2.5" for rank in (first, first + 1)]
        for rank in {first, first + 1} & set(with_traceback):
            lines += [f"[rank {rank}] [rank{rank}]: Traceback (most recent call last):", f"[rank {rank}] {TIMEOUT}"]
        lines += [f"understudy launcher: round=9.1.1 workers started ranks={first}-{first + 1}/{ranks}"]
        logs[Source(f"pod-{first // 2}", "")] = lines
    return logs


@pytest.mark.parametrize(
    ("stacks", "ranks", "evidence"),
    [
        # one rank has not come to the collective
        ((IN_ALL_REDUCE, IN_ALL_REDUCE, IN_DATA, IN_ALL_REDUCE), (2,), "ranks 0-1, 3 wait in torch.distributed"),
        # of two ranks one
        ((IN_DATA, IN_ALL_REDUCE), (0,), "rank 1 waits in torch.distributed, and its stack is elsewhere"),
        # the others wait in different calls
        ((IN_ALL_REDUCE, IN_OTHER, IN_DATA, IN_ALL_REDUCE), (2,), "ranks 0-1, 3 wait in torch.distributed"),
        # one rank is in another collective
        ((IN_ALL_REDUCE, IN_ALL_REDUCE, IN_OTHER, IN_ALL_REDUCE), (2,), "ranks 0-1, 3 wait at one place"),
        # the others wait below a call of another module, which waits for the collective
        ((IN_BACKWARD, IN_BACKWARD, IN_ALL_REDUCE, IN_BACKWARD), (2,), "ranks 0-1, 3 wait at one place"),
        # two ranks of one pod
        ((IN_ALL_REDUCE, IN_ALL_REDUCE, IN_DATA, IN_DATA), (2, 3), "ranks 0-1 wait in torch.distributed"),
    ],
)
def test_at_a_hang_the_suspect_is_the_rank_whose_stack_differs(
    stacks: tuple[tuple[str, ...], ...], ranks: tuple[int, ...], evidence: str
) -> None:
    found = suspects(hang(), of_hang(*stacks))
    assert found is not None
    assert (found.ranks, found.stack) == (ranks, stacks[ranks[0]])
    assert found.evidence.startswith(evidence)


@pytest.mark.parametrize("stacks", [(IN_ALL_REDUCE,) * 4, (IN_DATA,) * 2, (IN_ALL_REDUCE, IN_OTHER), ()])
def test_without_a_difference_there_is_no_suspect(stacks: tuple[tuple[str, ...], ...]) -> None:
    assert suspects(hang(), of_hang(*stacks)) is None


def test_other_threads_and_the_frames_of_the_fork_server_make_no_difference() -> None:
    # given ranks that wait at one place, and one of them has a thread that the others do not have
    thread = ('  File "tensorboard.py", line 3 in run', "Current thread 0x7f1 (most recent call first):")
    below = '  File "/tmp/pods/{}/python/understudy_zygote/script.py", line 91 in _execute'
    stacks = [(*IN_ALL_REDUCE, below.format(rank)) for rank in range(4)]
    # then there is no suspect
    assert suspects(hang(), of_hang((*thread, *stacks[0]), *stacks[1:])) is None


@pytest.mark.parametrize(
    "stacks",
    [
        pytest.param((IN_BACKWARD,) * 4, id="the stacks are equal"),
        pytest.param((IN_OTHER, IN_ALL_REDUCE, IN_ALL_REDUCE, IN_ALL_REDUCE), id="the stack of another rank differs"),
    ],
)
def test_at_a_hang_the_collectives_decide_before_the_stacks(stacks: tuple[tuple[str, ...], ...]) -> None:
    # given ranks that have written their collectives, and one has not entered that in which the others wait
    found = suspects(hang(), of_hang(*stacks, collectives=(WAITS, WAITS, DONE, WAITS)))
    # then it is the suspect, with its stack
    assert found is not None
    assert (found.place, found.stack) == ("rank 2, pod pod-1, node node-1", stacks[2])
    assert found.evidence == "ranks 0-1, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it"


@pytest.mark.parametrize("collectives", [(WAITS,) * 4, (WAITS, WAITS, "", WAITS), ("",) * 4, ("?",) * 4])
def test_collectives_that_show_no_late_rank_leave_the_decision_to_the_stacks(collectives: tuple[str, ...]) -> None:
    found = suspects(hang(), of_hang(IN_DATA, *(IN_ALL_REDUCE,) * 3, collectives=collectives))
    assert found is not None
    assert found.evidence == "ranks 1-3 wait in torch.distributed, and its stack is elsewhere"


def test_if_the_stacks_are_equal_the_only_rank_without_collectives_is_the_suspect() -> None:
    found = suspects(hang(), of_hang(*(IN_BACKWARD,) * 4, collectives=(WAITS, WAITS, "", WAITS)))
    assert found is not None
    assert found.ranks == (2,)
    assert found.evidence.endswith("It has not written its collectives, so it may have entered this one, too")


def test_stacks_of_another_round_do_not_count() -> None:
    assert suspects(hang(), of_hang(IN_ALL_REDUCE, IN_ALL_REDUCE, IN_DATA, round_number=3)) is None


def test_without_a_round_the_stacks_of_the_newest_one_count() -> None:
    # given stacks of two rounds, and a fault whose round is not known; in the newer round, rank 0 made steps
    older = of_hang(IN_DATA, IN_ALL_REDUCE, IN_ALL_REDUCE, IN_ALL_REDUCE)
    newer = of_hang(IN_DATA, IN_ALL_REDUCE, IN_DATA, IN_ALL_REDUCE, round_number=2)
    both = {
        source: [*lines, *(line for line in newer[source] if "rank 0]" not in line and " rank=0 " not in line)]
        for source, lines in older.items()
    }
    # then the suspect is that of the newer one
    found = suspects(Recovery("Hang", cause=Cause(0, message="no step for 5 s")), both)
    assert found is not None
    assert (found.ranks, found.evidence[:10]) == ((2,), "ranks 1, 3")


def test_a_long_stack_is_cut_to_its_innermost_frames() -> None:
    deep = (*IN_DATA, *(f'  File "t.py", line {line} in f' for line in range(20)))
    found = suspects(hang(), of_hang(IN_ALL_REDUCE, IN_ALL_REDUCE, deep))
    assert found is not None
    assert found.stack == deep[:12]


def test_a_single_suspect_has_its_pod_and_node() -> None:
    found = suspects(hang(), of_hang(IN_ALL_REDUCE, IN_ALL_REDUCE, IN_DATA, IN_ALL_REDUCE))
    assert found is not None
    assert found.place == "rank 2, pod pod-1, node node-1"
    two = suspects(hang(), of_hang(IN_DATA, IN_ALL_REDUCE, IN_DATA, IN_ALL_REDUCE))
    assert two is not None
    assert two.place == "ranks 0, 2"


def timeout(message: str = TIMEOUT, fault: str = "Process") -> Recovery:
    return Recovery(fault, round=1, cause=Cause(3, message=message))


def test_at_a_timeout_the_suspect_is_the_rank_that_has_raised_no_error() -> None:
    found = suspects(timeout(), of_timeout(0, 1, 3))
    assert found is not None
    assert (found.ranks, found.place) == ((2,), "rank 2, pod pod-1")
    assert found.evidence == "no error until ranks 0-1, 3 waited too long in a collective, and ended with an error"


@pytest.mark.parametrize("with_traceback", [(0, 1, 2, 3), (3,), ()])
def test_if_all_or_few_have_raised_an_error_there_is_no_suspect(with_traceback: tuple[int, ...]) -> None:
    assert suspects(timeout(), of_timeout(*with_traceback)) is None


@pytest.mark.parametrize("message", ["ValueError: loss is nan", "killed by SIGKILL", "ReadTimeout: timed out"])
def test_other_failures_have_no_suspect(message: str) -> None:
    assert suspects(timeout(message), of_timeout(0, 1, 3)) is None


@pytest.mark.parametrize(
    "message",
    [
        "DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE",
        "RuntimeError: [/gloo/transport/tcp/unbound_buffer.cc:129] Timed out waiting 4000ms for send operation",
        "DistStoreError: Timed out after 61 seconds waiting for clients. 1/2 clients joined.",
    ],
)
def test_these_messages_are_timeouts_of_collectives(message: str) -> None:
    assert suspects(timeout(message), of_timeout(0, 1, 3)) is not None


def test_tracebacks_of_the_round_before_do_not_count() -> None:
    # given that all ranks but one have written a traceback in round 0, and none in round 1
    lines = {source: [*of_log[:-1], "understudy launcher: round=9.1.1 workers started ranks=0-3/4"]
             for source, of_log in of_timeout(0, 1, 3).items()}  # fmt: skip
    # then the fault of round 1 has no suspect
    after = Recovery("Process", round=2, cause=Cause(3, message=TIMEOUT))
    assert suspects(after, lines) is None


def test_a_log_that_begins_within_the_round_counts() -> None:
    # given the end of each log, which the API server has cut before the round started
    cut = {source: lines[1:] for source, lines in of_timeout(0, 1, 3).items()}
    found = suspects(timeout(), cut)
    assert found is not None
    assert found.ranks == (2,)
