"""Whether a checkpoint is tried on SIGTERM: depends on the node's verdict and on the job's setting."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launcher.driven import Driven, ended, kills, start, terms
from tests.unit.launcher.fake_sidecar import Launched, alive, children, round_, wait_for
from understudy_launcher import events as e
from understudy_launcher.phases import LauncherPhase, OnSigterm
from understudy_launcher.verdict_file import read_hardware_finding, read_node_finding
from understudy_protocol import launcher as m
from understudy_protocol import pod, wire
from understudy_protocol.enums import FaultClass, Verdict
from understudy_protocol.launcher import ExitLauncher, Terminating, WorkersStarted
from understudy_protocol.membership import NodeVerdict

Launch = Callable[..., Launched]

HEALTHY = e.AskedToEnd("SIGTERM")
FAULTY = e.AskedToEnd("SIGTERM", "Xid 79 on GPU 3")
AUTO, ALWAYS, NEVER = OnSigterm.AUTO, OnSigterm.ALWAYS, OnSigterm.NEVER


def running(policy: OnSigterm = AUTO) -> Driven:
    driven = Driven(on_sigterm=policy)
    driven.do(start())
    return driven


# The decision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("policy", "asked"), [(AUTO, FAULTY), (NEVER, FAULTY), (NEVER, HEALTHY)])
def test_no_checkpoint_is_tried(policy: OnSigterm, asked: e.AskedToEnd) -> None:
    driven = running(policy)
    verdict = Verdict.FAULTY if asked.hardware_finding else Verdict.UNKNOWN
    assert driven.do(asked) == [e.Report(m.Terminating(0.0, verdict)), *kills(0, 1)]
    driven.do(ended(0, signal="SIGKILL"), e.GroupEmptied(0), ended(1, signal="SIGKILL"))
    (left,) = driven.do(e.GroupEmptied(1))
    assert isinstance(left, e.Exit)
    assert left.code == 1
    assert "no checkpoint is tried" in left.reason
    assert ("Xid 79 on GPU 3" in left.reason) == (policy is AUTO)


@pytest.mark.parametrize(("policy", "asked"), [(AUTO, HEALTHY), (ALWAYS, HEALTHY), (ALWAYS, FAULTY)])
def test_a_checkpoint_may_be_tried(policy: OnSigterm, asked: e.AskedToEnd) -> None:
    driven = running(policy)
    assert driven.do(asked) == [e.Report(m.Terminating(30.0)), *terms(0, 1)]
    assert driven.phase is LauncherPhase.SAVING


@pytest.mark.parametrize(("stays_s", "grace_s"), [(10.0, 10.0), (3600.0, 30.0)])
def test_workers_on_a_node_that_leaves_may_save_until_it_leaves(stays_s: float, grace_s: float) -> None:
    driven = running()
    assert driven.do(e.AskedToEnd("SIGTERM", "", stays_s)) == [e.Report(m.Terminating(grace_s)), *terms(0, 1)]
    assert driven.supervisor.deadline() == pytest.approx(driven.now + grace_s - min(2.0, grace_s / 10))


def test_a_worker_that_sleeps_in_the_kernel_delays_neither_the_report_nor_the_kill() -> None:
    driven = running()
    driven.do(FAULTY)
    (left,) = [x for x in driven.later(1.0) if isinstance(x, e.Exit)]
    assert left.code == 1


def test_a_failure_before_it_keeps_its_code() -> None:
    driven = running()
    driven.do(ended(1, 3), e.GroupEmptied(1))
    driven.do(FAULTY)
    (left,) = [x for x in driven.do(ended(0, signal="SIGKILL"), e.GroupEmptied(0)) if isinstance(x, e.Exit)]
    assert left.code == 3


def test_a_running_save_is_killed_on_a_faulty_node() -> None:
    """The job was suspended, its workers save, and then the pod is deleted because its node is faulty."""
    driven = running()
    driven.do(ExitLauncher(82, "Suspended", 30.0))
    assert driven.phase is LauncherPhase.CLOSING
    assert driven.do(FAULTY)[1:] == kills(0, 1)
    (left,) = [x for x in driven.later(1.0) if isinstance(x, e.Exit)]
    assert left.code == 82, "the close sets the code"


@pytest.mark.parametrize("policy", [AUTO, NEVER])
def test_a_spare_on_a_faulty_node_just_ends(policy: OnSigterm) -> None:
    driven = Driven(on_sigterm=policy)
    (report, left) = driven.do(FAULTY)
    assert report == e.Report(m.Terminating(0.0, Verdict.FAULTY))
    assert isinstance(left, e.Exit)


# The file -------------------------------------------------------------------------------------------------------------


def write(folder: Path, text: str | NodeVerdict) -> None:
    (folder / pod.VERDICT_FILE).write_text(text if isinstance(text, str) else wire.encode(text))


@pytest.mark.parametrize(
    ("verdict", "why"),
    [
        (NodeVerdict(Verdict.FAULTY, "Xid 79"), "Xid 79"),
        (NodeVerdict(Verdict.FAULTY), "the node health verdict has no reason"),
        (NodeVerdict(Verdict.FAULTY, "Xid 79", 1001.0), "Xid 79"),
        (NodeVerdict(Verdict.FAULTY, "Xid 79", 1000.0), ""),
        (NodeVerdict(Verdict.HEALTHY, "checked"), ""),
        (NodeVerdict(Verdict.UNKNOWN), ""),
    ],
)
def test_the_node_health_verdict_file(tmp_path: Path, verdict: NodeVerdict, why: str) -> None:
    write(tmp_path, verdict)
    assert read_hardware_finding(str(tmp_path), now=1000.0) == why


@pytest.mark.parametrize(("until", "grace_s"), [(None, 15.0), (1001.0, 15.0), (1000.0, None)])
def test_a_node_that_leaves_lets_its_workers_save_within_its_grace(
    tmp_path: Path, until: float | None, grace_s: float | None
) -> None:
    write(tmp_path, NodeVerdict(Verdict.UNKNOWN, "gke-termination", until, FaultClass.PREEMPTION, 15.0))
    assert read_node_finding(str(tmp_path), now=1000.0) == ("", grace_s)


@pytest.mark.parametrize("text", ["", "no json", "{}", '{"v":9,"type":"Later"}', '{"v":2,"type":"NodeVerdict"}'])
def test_a_broken_file_is_ignored(tmp_path: Path, text: str) -> None:
    write(tmp_path, text)
    assert read_hardware_finding(str(tmp_path), now=1000.0) == ""


def test_a_missing_file_is_ignored(tmp_path: Path) -> None:
    assert read_hardware_finding(str(tmp_path), now=1000.0) == ""


# A launcher's process -------------------------------------------------------------------------------------------------

STUBBORN = ("sh", "-c", 'trap "" TERM; echo $$ >> "$HERE/pids"; while :; do sleep 600; done')


def test_eight_workers_that_ignore_sigterm_end_at_once_with_the_launcher(launch: Launch, folder: Path) -> None:
    write(folder, NodeVerdict(Verdict.FAULTY, "Xid 79 on GPU 3"))
    launched = launch(*STUBBORN, **{pod.ENV_NPROC: "8"})
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersStarted)
    pids = launched.pids("pids", 8)
    asked = time.monotonic()
    os.kill(launched.process.pid, signal.SIGTERM)
    assert launched.sidecar.expect(Terminating) == Terminating(0.0, Verdict.FAULTY)
    assert launched.wait() == 1
    assert time.monotonic() - asked < 10, "nowhere near the grace period"
    assert not any(alive(pid) for pid in pids)
    assert "SIGTERM, and no checkpoint is tried: the node is faulty: Xid 79 on GPU 3" in launched.err


#: In C code, where no Python signal handler can run, as in a collective.
IN_C = """
import os, signal
signal.signal(signal.SIGTERM, lambda *_: None)
with open(os.environ["HERE"] + "/pids", "a") as pids:
    print(os.getpid(), file=pids)
sum(iter(int, 1))
"""


@pytest.fixture(params=["forked", "fresh"])
def busy(request: pytest.FixtureRequest, launch: Launch, folder: Path) -> Launched:
    """Eight workers that handle no signal, on a faulty node."""
    write(folder, NodeVerdict(Verdict.FAULTY, "Xid 79"))
    zygote = "true" if request.param == "forked" else "false"
    launched = launch("python3", "-c", IN_C, **{pod.ENV_NPROC: "8", pod.ENV_ZYGOTE: zygote})
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersStarted)
    return launched


def terminate(launched: Launched) -> None:
    os.kill(launched.process.pid, signal.SIGTERM)


def test_eight_workers_in_a_collective_end_at_once_too(busy: Launched) -> None:
    pids = busy.pids("pids", 8)
    terminate(busy)
    assert busy.wait() == 1
    assert not any(alive(pid) for pid in pids)


def test_a_second_sigterm_changes_nothing_on_a_faulty_node(busy: Launched) -> None:
    pids = busy.pids("pids", 8)
    terminate(busy)
    terminate(busy)
    assert busy.wait() == 1
    assert not any(alive(pid) for pid in pids)
    reports = [message for message in heard_to_the_end(busy) if isinstance(message, Terminating)]
    assert reports == [Terminating(0.0, Verdict.FAULTY)]


def heard_to_the_end(launched: Launched) -> list[object]:
    with contextlib.suppress(AssertionError):  # the launcher closed the connection
        while True:
            launched.sidecar.read()
    return launched.sidecar.heard


def test_a_second_sigterm_leaves_a_save_its_grace(launch: Launch) -> None:
    saves = (
        'trap "saving=yes" TERM; echo $$ >> "$HERE/pids"; while [ ! -e "$HERE/may-end" ]; do sleep 0.02; done; exit 5'
    )
    launched = launch("sh", "-c", saves)
    launched.join()
    launched.sidecar.send(round_(0))
    (pid,) = launched.pids("pids", 1)
    terminate(launched)
    assert launched.sidecar.expect(Terminating) == Terminating(30.0)
    terminate(launched)
    launched.logs("ignored another SIGTERM: the launcher is already shutting down")
    assert alive(pid)
    launched.path("may-end").touch()
    assert launched.wait() == 5


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.FAULTY, 1), (Verdict.UNKNOWN, 143)])
def test_sigterm_while_the_zygote_imports_ends_it_at_once(
    launch: Launch, folder: Path, verdict: Verdict, code: int
) -> None:
    # given a slow zygote, and a round that waits for it
    write(folder, NodeVerdict(verdict, "Xid 79"))
    (folder / "slow.py").write_text("import os, time; open(os.environ['HERE'] + '/slow', 'w'); time.sleep(600)")
    launched = launch("python3", "-c", "", **{pod.ENV_PRELOAD: "slow", "PYTHONPATH": str(folder)})
    launched.join()
    launched.sidecar.send(round_(0))
    wait_for(launched.path("slow").exists, "the import")
    (zygote,) = children(launched.process.pid)
    # when the pod is asked to end
    terminate(launched)
    # then the launcher ends, and the zygote with it
    assert launched.wait() == code
    wait_for(lambda: not alive(zygote), "the end of the zygote")


@pytest.mark.parametrize(("verdict", "code"), [(Verdict.FAULTY, 1), (Verdict.UNKNOWN, 143)])
def test_sigterm_on_a_spare_ends_it_at_once(launch: Launch, folder: Path, verdict: Verdict, code: int) -> None:
    write(folder, NodeVerdict(verdict, "Xid 79"))
    launched = launch("python3", "-c", "")
    launched.join()
    launched.logs("the fork server is ready")
    terminate(launched)
    assert launched.wait() == code


def test_sigterm_during_a_restart_leaves_no_process(busy: Launched) -> None:
    # given a round that is ordered while the previous one runs
    pids = busy.pids("pids", 8)
    busy.sidecar.send(round_(1))
    # when the pod is asked to end at about the same time
    terminate(busy)
    assert busy.wait() == 1
    # then no process of either round is left
    pids += [int(line) for line in busy.path("pids").read_text().split()]
    wait_for(lambda: not any(alive(pid) for pid in pids), "their end")


def test_a_verdict_that_came_while_workers_ran_counts(launch: Launch, folder: Path) -> None:
    launched = launch(*STUBBORN)
    launched.join()
    launched.sidecar.send(round_(0))
    launched.pids("pids", 1)
    write(folder, NodeVerdict(Verdict.FAULTY, "Xid 79"))
    os.kill(launched.process.pid, signal.SIGTERM)
    assert launched.wait() == 1


def test_an_unknown_policy_is_rejected(launch: Launch) -> None:
    launched = launch("true", **{pod.ENV_ON_SIGTERM: "Sometimes"})
    assert launched.wait() == 78
    assert "UNDERSTUDY_ON_SIGTERM='Sometimes': expected Auto, Always or Never" in launched.err
