"""The entry script `launch-torchrun`: torchrun's environment, and rejected rendezvous backends."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from understudy_protocol import pod

POD = {
    pod.ENV_SHARED_FOLDER: "/understudy",
    pod.ENV_NPROC: "8",
    pod.ENV_NNODES: "6:8",
    pod.ENV_RUN_ID: "llm",
    pod.ENV_GRACE: "120",
}


def run(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    stub = ["/bin/sh", str(folder / pod.TORCHRUN_SCRIPT)]
    whole = {"PATH": "/usr/bin:/bin", **env}
    return subprocess.run([*stub, *command], env=whole, capture_output=True, text=True, check=False)


def environment(folder: Path, **env: str) -> dict[str, str]:
    """The command's environment."""
    done = run(folder, "env", **env)
    assert done.returncode == 0, done.stderr
    return dict(line.split("=", 1) for line in done.stdout.splitlines())


def test_torchrun_gets_the_job_in_its_own_variables(packaged: Path) -> None:
    variables = {name: value for name, value in environment(packaged, **POD).items() if name.startswith("PET_")}
    assert variables == {
        "PET_RDZV_BACKEND": "understudy",
        "PET_RDZV_ENDPOINT": "/understudy/sidecar.sock",
        "PET_RDZV_ID": "llm",
        "PET_NNODES": "6:8",
        "PET_NPROC_PER_NODE": "8",
        "PET_MAX_RESTARTS": "1000000",
        "PET_SHUTDOWN_TIMEOUT": "120",
    }


@pytest.mark.parametrize("name", ["PET_RDZV_ID", "PET_NNODES", "PET_NPROC_PER_NODE", "PET_MAX_RESTARTS"])
def test_variables_of_the_manifest_or_the_image_are_kept(packaged: Path, name: str) -> None:
    assert environment(packaged, **POD, **{name: "3"})[name] == "3"
    assert environment(packaged, **POD, **{name: ""})[name] == environment(packaged, **POD)[name]


def test_our_folder_comes_last_on_the_users_path(packaged: Path) -> None:
    assert environment(packaged)["PYTHONPATH"] == f"{packaged}/python"
    assert environment(packaged, PYTHONPATH="/a:/b")["PYTHONPATH"] == f"/a:/b:{packaged}/python"


def test_the_command_replaces_the_shell_unchanged(packaged: Path) -> None:
    script = 'printf "<%s>" "$@"; exit 7'
    done = run(packaged, "bash", "-c", script, "name", "", "two words", "$HOME *", "--standalone")
    assert done.returncode == 64, "an option of torchrun's"
    done = run(packaged, "bash", "-c", script, "name", "", "two words", "--", "--standalone")
    assert done.returncode == 7
    assert done.stdout == "<><two words><--><--standalone>"


@pytest.mark.parametrize(
    "command",
    [
        ["--rdzv-backend=c10d", "train.py"],
        ["--rdzv_backend", "static", "train.py"],
        ["--nnodes=2", "--standalone", "train.py"],
    ],
    ids=" ".join,
)
def test_another_rendezvous_is_rejected_with_the_fix(packaged: Path, command: list[str]) -> None:
    done = run(packaged, "torchrun", *command)
    assert done.returncode == 64
    assert "torchrun does not use Understudy's rendezvous" in done.stderr
    assert "Remove it, or use launcher.mode Wrap" in done.stderr


@pytest.mark.parametrize("name", ["PET_RDZV_BACKEND", "PET_STANDALONE"])
def test_another_rendezvous_in_a_variable_is_rejected(packaged: Path, name: str) -> None:
    done = run(packaged, "true", **{name: "1"})
    assert (done.returncode, f"{name}=1" in done.stderr) == (64, True)


@pytest.mark.parametrize(
    "words",
    [
        ["--rdzv-backend=understudy"],
        ["--rdzv_backend", "understudy"],
        ["train.py", "--rdzv-backend=c10d"],
        ["-m", "train", "--standalone"],
    ],
    ids=" ".join,
)
def test_our_own_rendezvous_and_the_scripts_options_are_accepted(packaged: Path, words: list[str]) -> None:
    assert run(packaged, "true", *words).returncode == 0


def test_a_missing_command_is_rejected(packaged: Path) -> None:
    done = run(packaged)
    assert (done.returncode, "expected a command" in done.stderr) == (64, True)


@pytest.mark.parametrize("nnodes", ["abc", "2:", ":4", "1:2:3", "0", "4:2", "-1", "2 "])
def test_an_invalid_number_of_pods_is_rejected_in_one_line(packaged: Path, nnodes: str) -> None:
    done = run(packaged, "torchrun", "train.py", PET_NNODES=nnodes)
    assert done.returncode == 64
    assert done.stderr == (
        f"understudy launch-torchrun: PET_NNODES={nnodes}: expected a number of pods, or MIN:MAX. Remove it: the job "
        "sets how many pods form a round.\n"
    )


@pytest.mark.parametrize("nnodes", ["1", "16", "2:4", "3:3"])
def test_a_number_of_pods_may_be_a_range(packaged: Path, nnodes: str) -> None:
    assert environment(packaged, PET_NNODES=nnodes)["PET_NNODES"] == nnodes
