"""An exception is reported before the end of the process of its worker: real launchers and workers, forks and fresh
processes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

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
#: As wandb does.
CHAINS_HOOKS = f"""
import sys
previous = sys.excepthook
sys.excepthook = lambda *error: previous(*error)
{RAISES}"""
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
    raise ValueError("of another")
os.waitpid(child, 0)
"""
#: A program that the script starts fails, and the script handles that.
STARTS_A_BAD_PROGRAM = """
import subprocess, sys
subprocess.run([sys.executable, "-c", 'raise ValueError("of another")'])
"""
#: The same in a session of its own.
STARTS_A_BAD_SERVER = """
import subprocess, sys
subprocess.run([sys.executable, "-c", 'raise ValueError("of another")'], start_new_session=True)
"""
#: Reports an exception as the interpreter does, and continues.
PRINTS_AN_EXCEPTION = """
import sys
try:
    raise ValueError("of another")
except ValueError as error:
    sys.last_value = error
    sys.excepthook(*sys.exc_info())
"""
SHOWS_ITSELF = """
import sys
modules = sorted({"json", "traceback"} & sys.modules.keys())
import json, os
shown = {"path": sys.path, "PYTHONPATH": os.environ["PYTHONPATH"], "modules": modules}
shown["variables"] = [name for name in os.environ if name == "UNDERSTUDY_WORKER_PARENT"]
with open(os.environ["HERE"] + "/shown", "w") as file:
    json.dump(shown, file)
"""


def started(launch: Launch, script: str, **env: str) -> Launched:
    return begun(launch("python3", "-c", script, **env))


def begun(launched: Launched) -> Launched:
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
    # when the script ends with an exception, then the launcher reports it, and lets the process end by itself
    expect_while_it_runs(launched, message, last_line)


@pytest.mark.parametrize(
    "command",
    [
        pytest.param(("python3", "script.py"), id="file"),
        pytest.param(("python3", "-u", "-m", "script"), id="module"),
        pytest.param(("bash", "-c", "exec python3 script.py"), id="the program of a shell"),
    ],
)
@pytest.mark.parametrize("script", [RAISES, CHAINS_HOOKS], ids=["exception", "a hook of the script that calls ours"])
def test_the_exception_of_a_fresh_process_is_reported_while_its_exit_handlers_run(
    launch: Launch, folder: Path, command: tuple[str, ...], script: str
) -> None:
    # given a worker that no fork server has forked
    (folder / "script.py").write_text(script)
    launched = begun(launch(*command, **{pod.ENV_ZYGOTE: "false"}))
    # when its script ends with an exception, then that is reported while the process ends
    expect_while_it_runs(launched, "ValueError: a wrong digest", "ValueError: a wrong digest\n")


def expect_while_it_runs(launched: Launched, message: str, last_line: str) -> None:
    raised = launched.sidecar.expect(WorkerRaised)
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


@pytest.mark.parametrize("zygote", ["true", "false"])
@pytest.mark.parametrize(
    "script",
    [
        pytest.param(HAS_A_BAD_CHILD, id="of a forked child"),
        pytest.param(STARTS_A_BAD_PROGRAM, id="of a program"),
        pytest.param(STARTS_A_BAD_SERVER, id="of a program with a session of its own"),
        pytest.param(PRINTS_AN_EXCEPTION, id="printed"),
    ],
)
def test_an_exception_that_does_not_end_the_worker_is_none_of_it(launch: Launch, zygote: str, script: str) -> None:
    launched = started(launch, script, **{pod.ENV_ZYGOTE: zygote})
    launched.sidecar.expect(WorkersFinished)
    launched.logs("ValueError: of another")
    assert reports_about_exceptions(launched) == []


@pytest.mark.parametrize("start", ["python3 bad.py", "setsid -w python3 bad.py"])
def test_the_exception_of_a_program_that_a_shell_starts_is_none_of_the_worker(
    launch: Launch, folder: Path, start: str
) -> None:
    (folder / "bad.py").write_text('raise ValueError("of another")')
    launched = begun(launch("bash", "-c", f"{start}; exit 0", **{pod.ENV_ZYGOTE: "false"}))
    launched.sidecar.expect(WorkersFinished)
    launched.logs("ValueError: of another")
    assert reports_about_exceptions(launched) == []


def test_the_script_of_a_fresh_process_sees_no_trace_of_the_hook_in_its_environment(
    launch: Launch, folder: Path
) -> None:
    # given a PYTHONPATH with an empty entry
    (folder / "script.py").write_text(SHOWS_ITSELF)
    # when a worker starts as a fresh process
    launched = begun(launch("python3", "script.py", PYTHONPATH="here:", **{pod.ENV_ZYGOTE: "false"}))
    launched.sidecar.expect(WorkersFinished)
    # then it has the PYTHONPATH of the pod, and none of the modules that only a report needs
    shown = json.loads((folder / "shown").read_text())
    assert shown["PYTHONPATH"] == f"here::{folder}/python"
    assert [entry for entry in shown["path"] if "fresh" in entry] == []
    assert shown["variables"] == []
    assert shown["modules"] == []


def test_a_sitecustomize_behind_the_hook_is_imported(launch: Launch, folder: Path) -> None:
    # given a Python with a sitecustomize of its own, as that of Debian
    site = folder / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import sys\nsys.excepthook = lambda *error: print('theirs', flush=True)\n")
    hook = folder / "python" / "understudy_zygote" / "fresh"
    run = [sys.executable, "-c", "import sitecustomize; print(sitecustomize.__file__); raise ValueError"]
    # when a Python starts with the hook before it
    done = subprocess.run(run, env={"PYTHONPATH": f"{hook}:{site}"}, capture_output=True, text=True, check=False)
    # then both are in effect
    assert (done.returncode, done.stdout) == (1, f"{site}/sitecustomize.py\ntheirs\n")
    assert done.stderr == ""
