"""Drains and closes with a grace, with real workers that handle SIGTERM and save."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from tests.unit.launcher.fake_sidecar import TRAINER_PYTHON, Launched, alive, children, round_, wait_for
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken, WorkersState
from understudy_protocol.launcher import (
    DrainWorkers,
    ExitLauncher,
    Terminating,
    WorkerExited,
    WorkersDrained,
    WorkersFinished,
    WorkersStarted,
)

Launch = Callable[..., Launched]

#: Records each SIGTERM; saves and exits with CODE once the test allows it.
SAVES = """
trap 'asked=yes; echo $RANK >> "$HERE/terms"' TERM
echo $$ >> "$HERE/pids"
while [ -z "$asked" ] || [ ! -e "$HERE/may-end" ]; do sleep 0.02; done
echo $RANK >> "$HERE/saved"; exit $CODE
"""
STUBBORN = 'trap "" TERM; echo $$ >> "$HERE/pids"; while :; do sleep 600; done'
#: A training started by a shell that SIGTERM ends.
BEHIND_A_SHELL = """
import os, signal, sys, time
here = os.environ['HERE']
signal.signal(signal.SIGTERM, lambda *_: (open(here + '/saved', 'w').write('0'), sys.exit(0)))
open(here + '/pids', 'a').write(f'{os.getpid()}\\n')
while True: time.sleep(60)
"""


def token(number: int) -> RoundToken:
    return round_(number).token


def saving(launch: Launch, code: int = 0, nproc: int = 2, grace_s: str = "60") -> Launched:
    """Running workers that wait for SIGTERM to save."""
    env = {"CODE": str(code), pod.ENV_NPROC: str(nproc), pod.ENV_GRACE: grace_s}
    return run(launch("sh", "-c", SAVES, **env), nproc)


def stubborn(launch: Launch) -> Launched:
    return run(launch("sh", "-c", STUBBORN), 1)


def run(launched: Launched, nproc: int) -> Launched:
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersStarted)
    launched.pids("pids", nproc)
    return launched


def drain(launched: Launched, grace_s: float = 60.0) -> None:
    launched.sidecar.send(DrainWorkers(token(0), grace_s))


def may_end(launched: Launched) -> None:
    launched.path("may-end").touch()


def ranks(launched: Launched, name: str) -> list[str]:
    path = launched.path(name)
    return sorted(path.read_text().split()) if path.exists() else []


def test_drained_workers_save_and_the_next_round_starts(launch: Launch) -> None:
    launched = saving(launch)
    drain(launched)
    may_end(launched)
    assert launched.sidecar.expect(WorkersDrained).token == token(0)
    assert ranks(launched, "saved") == ["0", "1"]
    assert children(launched.process.pid) == []
    launched.sidecar.send(round_(1))
    assert launched.sidecar.expect(WorkersStarted).token == token(1)


def test_a_drained_workers_exit_code_is_no_fault(launch: Launch) -> None:
    launched = saving(launch, code=7)
    drain(launched)
    may_end(launched)
    launched.sidecar.expect(WorkersDrained)
    assert not [heard for heard in launched.sidecar.heard if isinstance(heard, (WorkerExited, WorkersFinished))]
    launched.sidecar.send(ExitLauncher(81, "Failed"))
    assert launched.wait() == 81


def test_a_training_behind_a_shell_that_dies_of_sigterm_saves_too(launch: Launch) -> None:
    launched = run(launch("bash", "-c", f'"$PYTHON" -c "{BEHIND_A_SHELL}"; true', PYTHON=TRAINER_PYTHON), 1)
    drain(launched)
    launched.sidecar.expect(WorkersDrained)
    assert ranks(launched, "saved") == ["0"]


def test_a_worker_that_does_not_end_within_the_grace_is_killed_and_the_launcher_stays(launch: Launch) -> None:
    launched = stubborn(launch)
    (worker,) = launched.pids("pids", 1)
    before = time.monotonic()
    drain(launched, grace_s=0.5)
    launched.sidecar.expect(WorkersDrained)
    assert time.monotonic() - before >= 0.5
    assert not alive(worker)
    launched.sidecar.send(round_(1))
    assert launched.sidecar.expect(WorkersStarted).token == token(1)


def test_a_newer_round_does_not_wait_for_a_drain(launch: Launch) -> None:
    launched = stubborn(launch)
    drain(launched)
    launched.sidecar.send(round_(1))
    assert launched.sidecar.expect(WorkersStarted).token == token(1)
    assert not [heard for heard in launched.sidecar.heard if isinstance(heard, WorkersDrained)]


def test_a_sidecar_that_restarts_during_a_drain_gets_its_state_and_its_end(launch: Launch) -> None:
    launched = saving(launch)
    drain(launched)
    wait_for(lambda: ranks(launched, "terms") == ["0", "1"], "SIGTERM at both workers")
    hello = launched.sidecar.restart()
    assert (hello.workers, hello.is_draining) == (WorkersState.RUNNING, True)
    may_end(launched)
    launched.sidecar.expect(WorkersDrained)
    hello = launched.sidecar.restart()
    assert (hello.workers, hello.is_draining) == (WorkersState.IDLE, False)
    assert launched.sidecar.expect(WorkersDrained).token == token(0)


def test_sigterm_during_a_drain_does_not_interrupt_the_save(launch: Launch) -> None:
    launched = saving(launch)
    drain(launched)
    wait_for(lambda: ranks(launched, "terms") == ["0", "1"], "SIGTERM at both workers")
    launched.process.terminate()
    assert launched.sidecar.expect(Terminating).grace_s == 60
    may_end(launched)
    launched.sidecar.expect(WorkersDrained)
    assert launched.wait() == 143
    assert ranks(launched, "saved") == ["0", "1"]
    assert ranks(launched, "terms") == ["0", "1"], "SIGTERM comes once"


def test_a_drain_while_the_pod_ends_is_answered_before_the_exit(launch: Launch) -> None:
    launched = saving(launch)
    launched.process.terminate()
    launched.sidecar.expect(Terminating)
    drain(launched)
    may_end(launched)
    launched.sidecar.expect(WorkersDrained)
    assert launched.wait() == 143


# Closes ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [0, 7])
def test_closed_workers_save_and_the_launcher_exits_with_the_closes_code(launch: Launch, code: int) -> None:
    launched = saving(launch, code)
    launched.sidecar.send(ExitLauncher(82, "Suspended", 60.0))
    may_end(launched)
    assert launched.wait() == 82
    assert ranks(launched, "saved") == ["0", "1"]
    assert "exits 82: Suspended, and all workers have ended\n" in launched.err


def test_a_worker_that_does_not_end_within_a_closes_grace_is_killed(launch: Launch) -> None:
    launched = stubborn(launch)
    (worker,) = launched.pids("pids", 1)
    launched.sidecar.send(ExitLauncher(83, "Deleted", 0.5))
    assert launched.wait() == 83
    assert not alive(worker)


def test_a_close_during_a_drain_sets_the_exit_code(launch: Launch) -> None:
    launched = saving(launch)
    drain(launched)
    wait_for(lambda: ranks(launched, "terms") == ["0", "1"], "SIGTERM at both workers")
    launched.sidecar.send(ExitLauncher(82, "Suspended", 60.0))
    may_end(launched)
    launched.sidecar.expect(WorkersDrained)
    assert launched.wait() == 82
    assert ranks(launched, "saved") == ["0", "1"]


def test_a_second_close_without_a_grace_ends_the_save_at_once(launch: Launch) -> None:
    launched = stubborn(launch)
    launched.sidecar.send(ExitLauncher(82, "Suspended", 60.0), ExitLauncher(83, "Deleted"))
    assert launched.wait() == 82


def test_a_grace_may_be_longer_than_selects_maximum(launch: Launch) -> None:
    """Given more seconds than the kernel can count, the launcher keeps waiting and does not fail."""
    launched = saving(launch, nproc=1)
    drain(launched, grace_s=1e12)
    may_end(launched)
    launched.sidecar.expect(WorkersDrained)
    assert "a bug in the launcher" not in launched.err
