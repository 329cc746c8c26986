"""An exception is reported before the end of the process of its worker: real launchers and workers."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest

from tests.unit.launcher.fake_sidecar import Launched, alive, round_
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import WorkerExited, WorkerRaised, WorkersFinished, WorkersStarted

Launch = Callable[..., Launched]

#: An exit handler that lasts until the test ends it, as the shutdown of a large process.
LASTS = """
import atexit, os
def save():
    with open(os.environ["HERE"] + "/raised", "a") as file:
        file.write(f"{os.getpid()}\\n")
    open(os.environ["HERE"] + "/go").read()
atexit.register(save)
"""
RAISES = f'{LASTS}raise ValueError("a wrong digest")\n'
EXITS_WITH_A_TEXT = f'{LASTS}raise SystemExit("no data")\n'
#: torch's @record in a process that no fork server has forked.
RECORDS = """
import json, os, time
failure = {"message": "ValueError: a wrong digest", "extraInfo": {"timestamp": str(int(time.time()))}}
with open(os.environ["TORCHELASTIC_ERROR_FILE"], "w") as file:
    file.write(json.dumps({"message": failure}))
with open(os.environ["HERE"] + "/raised", "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
#: Its SIGTERM handler raises an exception.
SAVES_BADLY = """
import os, signal, time
def save(*_):
    raise RuntimeError("the save has failed")
signal.signal(signal.SIGTERM, save)
with open(os.environ["HERE"] + "/raised", "a") as file:
    file.write(f"{os.getpid()}\\n")
time.sleep(600)
"""
#: A forked child raises an exception, and the script continues.
HAS_A_BAD_CHILD = """
import os
child = os.fork()
if child == 0:
    raise ValueError("of the child")
os.waitpid(child, 0)
"""


def started(launch: Launch, script: str, **env: str) -> Launched:
    launched = launch("python3", "-c", script, **env)
    os.mkfifo(launched.path("go"))
    launched.join()
    launched.sidecar.send(round_(0))
    launched.sidecar.expect(WorkersStarted)
    return launched


def reports_about_exceptions(launched: Launched) -> list[WorkerRaised]:
    return [message for message in launched.sidecar.heard if isinstance(message, WorkerRaised)]


@pytest.mark.parametrize(
    ("script", "message", "last_line"),
    [
        pytest.param(RAISES, "ValueError: a wrong digest", "ValueError: a wrong digest\n", id="exception"),
        pytest.param(EXITS_WITH_A_TEXT, "SystemExit: no data", "SystemExit: no data\n", id="exit with a text"),
    ],
)
def test_the_exception_of_a_fork_is_reported_while_its_exit_handlers_run(
    launch: Launch, script: str, message: str, last_line: str
) -> None:
    # given a fork whose process lasts longer than its script
    launched = started(launch, script)
    # when the script ends with an exception
    raised = launched.sidecar.expect(WorkerRaised)
    # then the launcher reports it, and lets the process end by itself
    assert (raised.token, raised.local_rank, raised.message) == (RoundToken(0, 1, 0), 0, message)
    assert raised.traceback.endswith(last_line.rstrip())
    assert 0.0 <= raised.age_s < 20.0
    (worker,) = launched.pids("raised", 1)
    assert alive(worker)
    launched.path("go").write_text("now")
    exited = launched.sidecar.expect(WorkerExited)
    assert (exited.message, exited.exit_code) == (message, 1)
    assert len(reports_about_exceptions(launched)) == 1


@pytest.mark.parametrize("zygote", ["true", "false"])
def test_the_exception_of_a_worker_that_a_new_round_replaces_is_reported(launch: Launch, zygote: str) -> None:
    # given a worker whose exception is on file, and whose process still runs
    launched = started(launch, RECORDS, **{pod.ENV_ZYGOTE: zygote})
    launched.pids("raised", 1)
    # when a new round replaces it
    launched.sidecar.send(round_(1))
    # then its exception is reported for its own round, before the workers of the new one have started
    raised, begun = launched.sidecar.expect_both(WorkerRaised, WorkersStarted)
    assert (raised.token.round, raised.message, begun.token.round) == (0, "ValueError: a wrong digest", 1)
    assert launched.sidecar.heard.index(raised) < launched.sidecar.heard.index(begun)


def test_an_exception_is_reported_once(launch: Launch) -> None:
    launched = started(launch, RAISES)
    launched.sidecar.expect(WorkerRaised)
    launched.pids("raised", 1)
    launched.sidecar.send(round_(1))
    launched.sidecar.expect(WorkersStarted)
    assert [x.token.round for x in reports_about_exceptions(launched) if x.token.round == 0] == [0]


def test_an_exception_that_sigterm_causes_is_no_failure(launch: Launch) -> None:
    # given a worker that raises an exception when the launcher asks it to end
    launched = started(launch, SAVES_BADLY, **{pod.ENV_WORKER_GRACE_PERIOD: "60"})
    launched.pids("raised", 1)
    # when a new round replaces it
    launched.sidecar.send(round_(1))
    launched.sidecar.expect(WorkersStarted)
    # then no exception is reported
    launched.logs("RuntimeError: the save has failed")
    assert reports_about_exceptions(launched) == []


def test_the_exception_of_a_forked_child_is_none_of_the_worker(launch: Launch) -> None:
    launched = started(launch, HAS_A_BAD_CHILD)
    launched.sidecar.expect(WorkersFinished)
    launched.logs("ValueError: of the child")
    assert reports_about_exceptions(launched) == []
