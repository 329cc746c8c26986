"""Stock torchrun with --rdzv-backend=understudy, unmodified: rounds, failures, spares, the end of a job."""

from __future__ import annotations

import os
import signal
import socket
from functools import partial

import pytest

from tests.torchrun.job import Job, Member, alone, token
from tests.unit.launcher.fake_sidecar import alive
from understudy_protocol.enums import WorkersState
from understudy_protocol.launcher import (
    DrainWorkers,
    DropSocket,
    ExitLauncher,
    HoldSocket,
    LauncherHello,
    StartWorkers,
    Stepped,
    StopWorkers,
    WorkerExited,
    WorkerRaised,
    WorkersDrained,
    WorkersFinished,
)

pytestmark = pytest.mark.timeout(1200)

#: Trains until rank 0 finds the file `stop`.
TRAINS = """
import os, time
import torch, torch.distributed as dist
from understudy_torch import step
dist.init_process_group("gloo")
here, rank, number = os.environ["HERE"], os.environ["RANK"], torch.zeros(1)
# In one write: both of a member's workers have the same output.
line = f"rank {rank} {os.environ['WORLD_SIZE']} {os.environ['UNDERSTUDY_ROUND']} {os.getpid()}\\n"
os.write(1, line.encode())
n = 0
while True:
    stop = torch.tensor([float(rank == "0" and os.path.exists(os.path.join(here, "stop")))])
    dist.all_reduce(stop)
    if stop.item():
        break
    n += 1
    step(n)
    time.sleep(0.05)
dist.destroy_process_group()
"""

STEPS = alone(
    """
from understudy_torch import step
open(f"{here}/pids", "a").write(f"{os.getpid()}\\n")
step(1)
while True: time.sleep(60)
"""
)

SAVES = alone(
    """
def save(*_):
    time.sleep(0.3)
    open(f"{here}/saved", "w").close()
    sys.exit(0)
signal.signal(signal.SIGTERM, save)
open(f"{here}/pids", "a").write(f"{os.getpid()}\\n")
while True: time.sleep(0.05)
"""
)

#: Its exit handler does not end.
RAISES = alone(
    """
import atexit
atexit.register(time.sleep, 600)
raise ValueError("a wrong digest")
"""
)

STUBBORN = alone(
    """
signal.signal(signal.SIGTERM, signal.SIG_IGN)
open(f"{here}/pids", "a").write(f"{os.getpid()}\\n")
while True: time.sleep(60)
"""
)


def ranks(member: Member, number: int) -> dict[int, int]:
    """rank -> pid of the member's workers in a round, from their output."""
    lines = [line.split() for line in member.out.splitlines() if line.startswith("rank ")]
    return {int(rank): int(pid) for _, rank, _, round_, pid in lines if round_ == str(token(number))}


def have_printed(member: Member, number: int) -> bool:
    return len(ranks(member, number)) == 2


def in_step(number: int, *members: Member) -> list[set[int]]:
    """The ranks of each member, once all of them step in that round."""
    for member in members:
        assert member.sidecar.expect(Stepped).token == token(number)
        member.wait_until(partial(have_printed, member, number), lambda: "\n".join(m.out + m.err for m in members))
    return [set(ranks(member, number)) for member in members]


@pytest.mark.nightly  # each make test: e2e/test_torchrun.py
def test_a_killed_worker_causes_a_round_a_lost_agent_uses_a_spare_and_all_exit_0_in_the_end(job: Job) -> None:
    # given two members of two workers each, and a spare
    job.nproc = 2
    first, second, spare = job.start(TRAINS), job.start(TRAINS), job.start(TRAINS)
    job.join(first, second, spare)
    job.round(0, first, second)
    assert in_step(0, first, second) == [{0, 1}, {2, 3}]
    # when a worker is killed
    os.kill(ranks(second, 0)[3], signal.SIGKILL)
    # then its member reports that, and the next round runs with all of them
    failure = second.sidecar.expect(WorkerExited)
    assert (failure.token, failure.local_rank) == (token(0), 1)
    assert failure.signal in ("SIGKILL", None)  # None: torchrun was faster to reap it, and no other process can know
    job.round(1, first, second)
    assert in_step(1, first, second) == [{0, 1}, {2, 3}]
    # when a member is lost, even the one that serves the store
    first.end()
    job.round(2, spare, second)
    assert in_step(2, spare, second) == [{0, 1}, {2, 3}]
    assert not any(isinstance(message, WorkerExited) for message in spare.sidecar.heard)
    # when the training ends, then no member exits before the job is closed
    spare.path("stop").touch()
    for member in (spare, second):
        assert member.sidecar.expect(WorkersFinished).token == token(2)
    assert spare.process.poll() is None
    for member in (spare, second):
        member.sidecar.send(ExitLauncher(0, "Succeeded"))
        assert member.wait() == 0
    assert not spare.traceback


@pytest.mark.parametrize(
    ("code", "reason"),
    [(0, "Succeeded"), (81, "Failed"), pytest.param(82, "Suspended", marks=pytest.mark.nightly)],
)
def test_a_spare_exits_with_the_code_of_the_close_and_without_a_traceback(job: Job, code: int, reason: str) -> None:
    spare = job.start(STEPS)
    job.join(spare)
    spare.sidecar.send(ExitLauncher(code, reason))
    assert spare.wait() == code
    assert not spare.traceback
    assert f"exits {code}: {reason}" in spare.err


def test_a_failed_workers_code_becomes_torchruns(job: Job) -> None:
    member = job.start(alone("sys.exit(7)"))
    job.join(member)
    job.begin_round(0, member)  # it may end before it is seen running
    failure = member.sidecar.expect(WorkerExited)
    assert failure.exit_code in (7, None), "None: torchrun has reaped it too soon"
    member.sidecar.send(ExitLauncher(81, "Failed"))
    assert member.wait() in (7, 1)
    assert not member.traceback


def test_the_exception_of_a_worker_is_reported_while_its_exit_handlers_run(job: Job) -> None:
    """The script has no torch decorator."""
    member = job.start(RAISES)
    job.join(member)
    job.begin_round(0, member)
    raised = member.sidecar.expect(WorkerRaised)
    assert (raised.token, raised.message) == (token(0), "ValueError: a wrong digest")
    assert [message for message in member.sidecar.heard if isinstance(message, WorkerExited)] == []


def test_a_neighbor_that_ignores_sigterm_does_not_delay_the_next_round(job: Job) -> None:
    """torchrun itself kills a worker 30 s after its SIGTERM."""
    job.nproc = 2
    member = job.start(STUBBORN)
    job.join(member)
    job.round(0, member)
    victim, neighbor = member.pids("pids", 2)
    os.kill(victim, signal.SIGKILL)
    member.sidecar.expect(WorkerExited)
    job.round(1, member)
    member.pids("pids", 4)
    assert not alive(neighbor)
    assert "forcefully exiting" not in member.err, "torchrun killed it, after its grace period"


def test_a_stopped_member_idles_and_takes_part_again(job: Job) -> None:
    member = job.start(STEPS)
    job.join(member)
    job.round(0, member)
    (worker,) = member.pids("pids", 1)
    member.sidecar.send(StopWorkers("fenced"))
    assert member.sidecar.expect(LauncherHello).workers is WorkersState.IDLE
    assert not alive(worker)
    job.round(1, member)
    member.pids("pids", 2)
    assert not [message for message in member.sidecar.heard if isinstance(message, WorkerExited)]


def test_drained_workers_save_and_the_next_round_follows(job: Job) -> None:
    member = job.start(SAVES)
    job.join(member)
    job.round(0, member)
    member.pids("pids", 1)
    member.sidecar.send(DrainWorkers(token(0), 30.0))
    assert member.sidecar.expect(WorkersDrained).token == token(0)
    assert member.path("saved").exists()
    job.round(1, member)
    member.pids("pids", 2)
    assert not [message for message in member.sidecar.heard if isinstance(message, (WorkerExited, WorkersFinished))]


def test_a_round_after_the_end_of_its_workers_restarts_torchrun(job: Job) -> None:
    member = job.start(alone("open(f'{here}/pids', 'a').write(f'{os.getpid()}\\n')"))
    job.join(member)
    job.round(0, member)
    member.sidecar.expect(WorkersFinished)
    pid = member.process.pid
    port = member.store_port
    member.sidecar.send(StartWorkers(token(1), 0, 1, 0, 1, "127.0.0.1", port, True))
    hello = member.sidecar.accept_beside()  # if its connection ended, it would connect again before it restarts
    assert (hello.pid, hello.workers) == (pid, WorkersState.IDLE)
    job.round(2, member)
    member.sidecar.expect(WorkersFinished)
    assert len(member.pids("pids", 2)) == 2
    member.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert member.wait() == 0


def test_a_sidecar_that_restarts_finds_the_workers_running_and_receives_missed_orders(job: Job) -> None:
    member = job.start(STEPS)
    job.join(member)
    job.round(0, member)
    (worker,) = member.pids("pids", 1)
    hello = member.sidecar.restart()
    assert (hello.token, hello.workers) == (token(0), WorkersState.RUNNING)
    member.sidecar.crash()
    os.kill(worker, signal.SIGKILL)
    member.logs("failed (exitcode: -9)")  # torchrun's own line
    assert member.sidecar.restart().workers is WorkersState.FAILED
    assert member.sidecar.expect(WorkerExited).token == token(0)


def test_the_sidecars_connection_is_kept_until_it_is_to_be_dropped(job: Job) -> None:
    member = job.start(STEPS)
    job.join(member)
    coordinator, sidecar = socket.socketpair()
    coordinator.setblocking(False)
    member.sidecar.send_with(HoldSocket(), sidecar.fileno())
    job.round(0, member)  # it has read that line
    sidecar.close()
    with pytest.raises(BlockingIOError):
        coordinator.recv(1)
    coordinator.settimeout(member.limit_s)
    member.pids("pids", 1)
    member.sidecar.send(DropSocket())
    assert coordinator.recv(1) == b"", "no worker has inherited it"
    coordinator.close()
