"""Mode Auto with real torch: the command calls torchrun, and the launcher forks the workers of that call."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_python
from tests.torchrun import auto
from tests.torchrun.job import Member, alone, token
from tests.unit.launcher.fake_sidecar import children, name_of
from understudy_protocol.launcher import ExitLauncher, ForkFallback, WorkerExited, WorkersFinished

pytestmark = pytest.mark.timeout(1200)

Start = Callable[..., Member]

#: Writes its environment, arguments and streams' names to a file, and waits until the file `stop` exists.
RECORDS = alone(
    """
import json
step = None
facts = {"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "parent": os.getppid(), "pid": os.getpid(),
         "umask": os.umask(0), "unbuffered": sys.stdout.line_buffering or sys.stdout.write_through,
         "module": __spec__.name if __spec__ else None}
name = f"{here}/facts-{os.environ['RANK']}-{os.environ['TORCHELASTIC_RESTART_COUNT']}"
open(name + ".tmp", "w").write(json.dumps(facts))
os.rename(name + ".tmp", name)
print("out of", os.environ["RANK"], flush=True)
print("err of", os.environ["RANK"], file=sys.stderr, flush=True)
while not os.path.exists(f"{here}/stop"): time.sleep(0.05)
"""
)
#: Variables whose values belong to a round or to one call: a stock torchrun of one node has a random run id.
OF_THE_PROCESS = {
    "MASTER_ADDR",
    "MASTER_PORT",
    "TORCHELASTIC_USE_AGENT_STORE",
    "TORCHELASTIC_ERROR_FILE",
    "TORCHELASTIC_RUN_ID",
}
#: Variables of Understudy, which a stock torchrun does not set.
OURS = {"UNDERSTUDY_ROUND", "UNDERSTUDY_STEP_FD", "JOB_COMPLETION_INDEX", "NODE_RANK"}


@pytest.fixture
def folder(packaged: Path) -> Iterator[Path]:
    """The shared folder of a pod. Not in tmp_path: a unix socket's path has at most 107 characters."""
    path = Path(tempfile.mkdtemp(prefix="understudy-"))
    shutil.copytree(packaged, path, dirs_exist_ok=True)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def start(folder: Path, torch: Path) -> Iterator[Start]:
    started: list[Member] = []

    def begin(script: str, *command: str, nproc: int = 1, **env: str) -> Member:
        started.append(auto.start(folder, torch, script, *command, nproc=nproc, **env))
        return started[-1]

    yield begin
    for member in started:
        member.end()


def facts(member: Member, rank: int, number: int = 0) -> dict[str, object]:
    path = member.path(f"facts-{rank}-{number}")
    member.wait_until(path.exists, lambda: f"{path}; the launcher's output:\n{member.err}{member.out}")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def succeed(member: Member, *, nproc: int = 1, number: int = 0) -> int:
    """Let the workers finish, and the job succeed. Return the launcher's exit code."""
    member.path("stop").touch()
    assert member.sidecar.expect(WorkersFinished).token == token(number)
    member.sidecar.send(ExitLauncher(0, "Succeeded"))
    return member.wait()


def names_of_children(pid: int) -> set[str]:
    return {name_of(child) for child in children(pid)}


# The environment ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "env"),
    [
        (["--nproc-per-node", "2"], {}),
        (["--nproc-per-node=2", "--role=trainer", "--max-restarts=3", "--rdzv-id=run7"], {"OMP_NUM_THREADS": "4"}),
    ],
)
def test_workers_have_the_environment_of_a_stock_torchrun(
    start: Start, folder: Path, torch: Path, options: list[str], env: dict[str, str]
) -> None:
    # given the same command under a stock torchrun, as one node of one
    result = folder / "stock"
    result.mkdir()
    (folder / "train.py").write_text(RECORDS)
    auto.torchrun_script(folder)
    whole = auto.environment(folder, torch, 2, HERE=str(result), PWD=str(folder), **env)  # a shell sets PWD
    whole = {name: value for name, value in whole.items() if not name.startswith("UNDERSTUDY_")}
    (result / "stop").touch()
    done = subprocess.run(
        ["torchrun", *options, str(folder / "train.py"), "a"], env=whole, cwd=folder, capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr
    # when the launcher runs it
    member = start(RECORDS, "torchrun", *options, "{train}", "a", nproc=2, **env)
    member.join()
    auto.begin_round(member, 0, nproc=2)
    # then each variable of each worker is the same, and the flight recorder's size is set
    for rank in range(2):
        stock = json.loads((result / f"facts-{rank}-0").read_text())
        ours = facts(member, rank)
        # for slow ranks; torch's own default
        assert differences(stock["env"], ours["env"], folder) == {"TORCH_FR_BUFFER_SIZE": (None, "2000")}
        assert (ours["argv"], ours["umask"]) == (stock["argv"], stock["umask"])
        assert ours["unbuffered"] == stock["unbuffered"]
    assert succeed(member, nproc=2) == 0


def differences(stock: object, ours: object, folder: Path) -> dict[str, tuple[str | None, str | None]]:
    assert isinstance(stock, dict)
    assert isinstance(ours, dict)
    ignored = OF_THE_PROCESS | OURS | {"HERE"}
    ours = {**ours, "PYTHONPATH": ours["PYTHONPATH"].removesuffix(f":{folder}/python")}
    names = (stock.keys() | ours.keys()) - ignored
    return {name: (stock.get(name), ours.get(name)) for name in names if stock.get(name) != ours.get(name)}


@pytest.mark.parametrize(
    ("options", "run_id"),
    [
        (["--standalone"], "llm"),
        pytest.param([], "llm", marks=pytest.mark.nightly),
        pytest.param(["--rdzv-id=run7", "--nnodes=2"], "run7", marks=pytest.mark.nightly),
    ],
)
def test_the_run_id_is_the_same_in_all_pods(start: Start, options: list[str], run_id: str) -> None:
    member = start(RECORDS, "torchrun", *options, "{train}")
    member.join()
    auto.begin_round(member, 0)
    env = facts(member, 0)["env"]
    assert isinstance(env, dict)
    assert (env["TORCHELASTIC_RUN_ID"], env["WORLD_SIZE"]) == (run_id, "1")
    assert succeed(member) == 0


# Forms of the command -------------------------------------------------------------------------------------------------


#: The others differ from these only before torch's parser.
IN_EACH_RUN = ("bash", "-m", "no-python")
FORMS = {
    "torchrun": ["torchrun", "{train}", "x"],
    "module": [torch_python(), "-m", "torch.distributed.run", "{train}", "x"],
    "env": ["env", "COLOR=red", "torchrun", "{train}", "x"],
    "nohup": ["nohup", "torchrun", "{train}", "x"],
    "bash": ["bash", "-c", "export COLOR=red; cd / && exec torchrun --rdzv-backend=c10d {train} x"],
    "script": ["sh", "{train}.sh"],
    "no-python": ["torchrun", "--no-python", torch_python(), "-u", "{train}", "x"],
    "-m": ["bash", "-c", "cd $HERE; torchrun -m train x"],
}


@pytest.mark.parametrize(
    "form", [form if form in IN_EACH_RUN else pytest.param(form, marks=pytest.mark.nightly) for form in FORMS]
)
def test_each_form_of_the_command_runs_forked_workers(start: Start, folder: Path, form: str) -> None:
    (folder / "train.py.sh").write_text(f"# a comment\ncd {folder}\ntorchrun train.py x\necho after\n")
    member = start(RECORDS, *FORMS[form])
    member.join()
    auto.begin_round(member, 0)
    found = facts(member, 0)
    argv = found["argv"]
    assert isinstance(argv, list)
    assert argv[1:] == ["x"]
    assert name_of(int(str(found["parent"]))) == "zygote"
    env = found["env"]
    assert isinstance(env, dict)
    assert env.get("COLOR") == ("red" if form in ("env", "bash") else None)
    assert found["cwd"] == ("/" if form == "bash" else str(folder))
    assert found["module"] == ("train" if form == "-m" else None)
    assert succeed(member) == 0


def test_launch_passes_the_local_rank_as_an_argument(start: Start) -> None:
    command = [torch_python(), "-m", "torch.distributed.launch", "--nproc-per-node=2", "{train}", "x"]
    member = start(RECORDS, *command, nproc=2)
    member.join()
    auto.begin_round(member, 0, nproc=2)
    argvs = [facts(member, rank)["argv"] for rank in range(2)]
    assert [argv[1:] for argv in argvs if isinstance(argv, list)] == [["--local-rank=0", "x"], ["--local-rank=1", "x"]]
    assert {name_of(int(str(facts(member, rank)["parent"]))) for rank in range(2)} == {"zygote"}


# Rounds and the end ---------------------------------------------------------------------------------------------------


def test_a_killed_worker_is_forked_again_and_the_script_continues_after_the_end(start: Start, folder: Path) -> None:
    # given a script that uploads after its torchrun
    script = "umask 027; ulimit -n 512; torchrun --nproc-per-node 2 {train} > $HERE/torchrun.log; echo code $?; exit 3"
    member = start(RECORDS, "bash", "-c", script, nproc=2)
    member.join()
    auto.begin_round(member, 0, nproc=2)
    first = facts(member, 1)
    # when a worker is killed
    os.kill(int(str(first["pid"])), signal.SIGKILL)
    assert member.sidecar.expect(WorkerExited).signal == "SIGKILL"
    began = time.monotonic()
    auto.begin_round(member, 1, nproc=2)
    second = facts(member, 1, 1)
    # then the next one is a fork of the same zygote, at once
    assert second["parent"] == first["parent"]
    assert time.monotonic() - began < 5.0
    assert second["umask"] == 0o027
    # when the training succeeds
    code = succeed(member, nproc=2, number=1)
    # then torchrun exits 0, the script continues, and its exit code is the container's
    assert (code, member.out) == (3, "code 0\n")
    assert "[rank 1] out of 1\n" in (folder / "torchrun.log").read_text()


def test_a_pod_joins_only_once_its_script_calls_torchrun(start: Start, folder: Path) -> None:
    wait = "until [ -e $HERE/prepared ]; do sleep 0.05; done; torchrun {train}"
    member = start(RECORDS, "bash", "-c", wait)
    member.sidecar.listen()
    member.logs("the command calls torchrun")
    (folder / "prepared").touch()
    member.sidecar.accept()
    auto.begin_round(member, 0)
    facts(member, 0)
    assert succeed(member) == 0


def test_a_failed_job_ends_torchrun_with_1_and_the_pod_with_the_workers_code(start: Start) -> None:
    member = start(alone("sys.exit(7)"), "bash", "-c", "torchrun {train}; echo code $?")
    member.join()
    auto.order_round(member, 0)
    assert member.sidecar.expect(WorkerExited).exit_code == 7
    member.sidecar.send(ExitLauncher(81, "Failed"))
    assert (member.wait(), member.out) == (7, "code 1\n")


def test_sigterm_ends_the_workers_and_the_script(start: Start) -> None:
    member = start(RECORDS, "bash", "-c", "torchrun {train}; sleep 600")
    member.join()
    auto.begin_round(member, 0)
    facts(member, 0)
    member.process.send_signal(signal.SIGTERM)
    member.sidecar.crash()
    assert member.wait() == 143


def test_a_torchrun_that_is_ended_ends_its_workers(start: Start) -> None:
    member = start(RECORDS, "bash", "-c", "torchrun {train} & echo $! > $HERE/torchrun.pid; wait")
    member.join()
    auto.begin_round(member, 0)
    facts(member, 0)
    os.kill(member.pids("torchrun.pid", 1)[0], signal.SIGTERM)
    assert member.wait() == 143
    assert "the end of torchrun" in member.err


def test_the_waiting_torchrun_does_not_keep_torch_in_memory(start: Start) -> None:
    member = start(RECORDS, "bash", "-c", "torchrun {train} & echo $! > $HERE/torchrun.pid; wait")
    member.join()
    auto.begin_round(member, 0)
    (pid,) = member.pids("torchrun.pid", 1)
    resident_kib = int(Path(f"/proc/{pid}/status").read_text().split("VmRSS:")[1].split()[0])
    assert resident_kib < 30_000


# Logs and errors ------------------------------------------------------------------------------------------------------


def test_log_dir_redirects_tee_and_filter_have_torchruns_layout(start: Start, folder: Path) -> None:
    options = ["--log-dir", str(folder / "logs"), "--rdzv-id=run7", "-r", "0:3", "-t", "1:3", "--nproc-per-node=3"]
    member = start(RECORDS, "torchrun", *options, "--local-ranks-filter=0,1", "{train}", nproc=3)
    member.join()
    auto.begin_round(member, 0, nproc=3)
    for rank in range(3):
        facts(member, rank)
    assert succeed(member, nproc=3) == 0
    (run,) = (folder / "logs").iterdir()
    assert run.name.startswith("run7_")
    files = {str(path.relative_to(run)): path.read_text() for path in run.rglob("*.log")}
    assert files == {
        "attempt_0/0/stdout.log": "out of 0\n",
        "attempt_0/0/stderr.log": "err of 0\n",
        "attempt_0/1/stdout.log": "out of 1\n",
        "attempt_0/1/stderr.log": "err of 1\n",
    }
    assert member.out == "[default1]:out of 1\n"
    assert "[default1]:err of 1\n" in member.err
    assert "err of 0" not in member.err
    assert "err of 2" not in member.err


def test_the_error_file_of_an_exception_is_in_the_log_folder(start: Start, folder: Path) -> None:
    member = start(alone("raise ValueError('no data')"), "torchrun", "--log-dir", str(folder / "logs"), "{train}")
    member.join()
    auto.order_round(member, 4)
    assert member.sidecar.expect(WorkerExited).message == "ValueError: no data"
    (error,) = (folder / "logs").glob("*/attempt_4/0/error.json")
    assert "no data" in error.read_text()


# Rejected calls, and workers that torchrun starts itself --------------------------------------------------------------


def test_an_option_that_cannot_be_honored_runs_under_torchrun_and_is_the_reason(start: Start, folder: Path) -> None:
    member = start(RECORDS, "torchrun", "--run-path", "{train}")
    hello_of_torchrun = member.join()
    assert hello_of_torchrun.pid != member.process.pid
    assert "--run-path" in member.sidecar.expect(ForkFallback).reason
    auto.begin_round(member, 0)
    facts(member, 0)
    member.path("stop").touch()
    member.sidecar.expect(WorkersFinished)
    member.sidecar.send(ExitLauncher(0, "Succeeded"))
    assert member.wait() == 0


@pytest.mark.parametrize(
    ("command", "nproc", "text"),
    [
        (["torchrun", "--nproc-per-node=2", "{train}"], 4, "--nproc-per-node is 2, but launcher.nprocPerNode is 4"),
        (["bash", "-c", "# torchrun\necho $PET_NPROC_PER_NODE; : torchrun x"], 1, "without a call of torchrun"),
    ],
)
def test_a_command_that_cannot_run_ends_the_pod_with_the_reason(
    start: Start, command: list[str], nproc: int, text: str
) -> None:
    member = start(RECORDS, *command, nproc=nproc)
    assert member.wait() == 64
    assert text in member.err


def test_torchruns_own_errors_stay_its_own(start: Start) -> None:
    member = start(RECORDS, "torchrun", "--no-such-option", "{train}")
    assert member.wait() == 2
    assert "unrecognized arguments" in member.err or "error:" in member.err


def test_a_second_torchrun_is_rejected(start: Start) -> None:
    member = start(RECORDS, "bash", "-c", "torchrun {train} & wait $! && torchrun {train}")
    member.join()
    auto.begin_round(member, 0)
    facts(member, 0)
    assert succeed(member) == 64
    assert "calls torchrun a second time" in member.err


def test_a_torchrun_that_is_no_part_of_the_job_trains_alone(start: Start, folder: Path) -> None:
    (folder / "check.py").write_text("import os; os.write(1, f\"checked {os.environ['WORLD_SIZE']}\\n\".encode())\n")
    check = "env -u UNDERSTUDY_TORCHRUN_SOCKET torchrun --standalone --nproc-per-node=2 $HERE/check.py"
    member = start(RECORDS, "bash", "-c", f"{check} && exec torchrun {{train}}")
    member.join()
    auto.begin_round(member, 0)
    facts(member, 0)
    assert succeed(member) == 0
    assert member.out.count("checked 2\n") == 2


def test_a_worker_that_starts_a_rendezvous_of_its_own_is_stopped_with_the_reason(start: Start, folder: Path) -> None:
    # given a command that hides its torchrun from the launcher
    hidden = "import os; os.execvp('torch' + 'run', ['torchrun', os.environ['HERE'] + '/train.py'])"
    member = start(RECORDS, sys.executable, "-c", hidden, nproc=2)
    member.join()
    auto.order_round(member, 0, nproc=2)
    # then each worker fails, and reports why
    failure = member.sidecar.expect(WorkerExited)
    assert failure.exit_code == 64
    assert "starts a rendezvous of its own" in failure.message
    assert not list(folder.glob("facts-*"))
