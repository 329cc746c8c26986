"""The job that a torchrun passes to the launcher: commands, environments, files, and jobs that are rejected."""

from __future__ import annotations

from dataclasses import replace

import pytest

from understudy_launcher.torchrun_call import (
    Stream,
    WorkerOutput,
    command_of,
    job_environment,
    output_of,
    rejection,
    tees,
    torchrun_defaults,
)
from understudy_protocol.torchrun import ProcessSettings, RunWorkers, WorkerFiles

PROCESS = ProcessSettings(umask=0o022, nice=0, cpus=(0,), limits={})
RUN = "/logs/run7_x/attempt_0"


def files(rank: int, stdout: str = "", stderr: str = "", *, tees: bool = False) -> WorkerFiles:
    return WorkerFiles(stdout, stderr, tees, False, f"{RUN}/{rank}/error.json")


CALL = RunWorkers(
    command=("/usr/bin/python3", "-u", "train.py"),
    nproc=2,
    env={},
    folder="/app",
    process=PROCESS,
    files=(files(0), files(1)),
    attempt_folder=RUN,
    line_prefix="[default${local_rank}]:",
)


def test_each_worker_has_its_local_rank_in_the_arguments_as_with_torchruns_macros() -> None:
    words = ["/usr/bin/python3", "-u", "train.py", "--local-rank=${local_rank}", "$$HOME", "$other"]
    assert command_of(words, 3) == ["/usr/bin/python3", "-u", "train.py", "--local-rank=3", "$HOME", "$other"]


def test_files_are_in_the_folder_of_the_rounds_number() -> None:
    call = replace(CALL, files=(files(0, f"{RUN}/0/stdout.log", tees=True), files(1, stderr="/dev/null")))
    assert output_of(call, 12, 0, 8) == WorkerOutput(
        Stream("/logs/run7_x/attempt_12/0/stdout.log", tees=True, prefix="[default0]:"),
        Stream(),
        "/logs/run7_x/attempt_12/0/error.json",
    )
    assert output_of(call, 0, 1, 9) == WorkerOutput(Stream(), Stream("/dev/null"), f"{RUN}/1/error.json")
    assert (tees(call), tees(CALL)) == (True, False)


def test_the_prefix_of_teed_lines_may_have_the_rank() -> None:
    call = replace(CALL, line_prefix="${rank}/${local_rank} ", files=(files(0, f"{RUN}/0/stdout.log", tees=True),))
    assert output_of(call, 0, 0, 8).stdout.prefix == "8/0 "


def test_variables_that_the_launcher_set_for_torchrun_are_removed_and_those_of_the_pod_kept() -> None:
    own = {"UNDERSTUDY_FOLDER": "/understudy", "A": "launcher"}
    defaults = torchrun_defaults(own, "/understudy/sidecar.sock")
    sent = {**defaults, "A": "script", "PET_NNODES": "3", "UNDERSTUDY_FOLDER": "/other", "UNDERSTUDY_NEW": "x"}
    assert job_environment(replace(CALL, env=sent), own, defaults) == {
        "A": "script",
        "PET_NNODES": "3",
        "UNDERSTUDY_FOLDER": "/understudy",
    }


def test_torchruns_defaults_are_the_jobs_values_unless_the_pod_has_its_own() -> None:
    env = {
        "UNDERSTUDY_NPROC_PER_NODE": "8",
        "UNDERSTUDY_RUN_ID": "llm",
        "PET_NNODES": "2:4",
        "PET_SHUTDOWN_TIMEOUT": "",
    }
    assert torchrun_defaults(env, "/understudy/sidecar.sock") == {
        "PET_RDZV_BACKEND": "understudy",
        "PET_RDZV_ENDPOINT": "/understudy/sidecar.sock",
        "PET_RDZV_ID": "llm",
        "PET_NPROC_PER_NODE": "8",
        "PET_SHUTDOWN_TIMEOUT": "30",
    }


@pytest.mark.parametrize(
    ("call", "nproc", "text"),
    [
        (CALL, 2, ""),
        (replace(CALL, files=(), attempt_folder=""), 2, "files of 0 workers in place of 2"),
        (CALL, 8, "--nproc-per-node is 2, but launcher.nprocPerNode is 8"),
        (replace(CALL, command=()), 2, "sent no command"),
        (replace(CALL, attempt_folder="/logs/run7_x"), 2, "are not in '/logs/run7_x'"),
        (replace(CALL, files=(files(0), files(1, "/etc/passwd"))), 2, f"are not in '{RUN}'"),
    ],
)
def test_a_job_that_disagrees_with_the_spec_is_rejected(call: RunWorkers, nproc: int, text: str) -> None:
    why_not = rejection(call, nproc)
    assert text in why_not
    assert bool(why_not) is bool(text)
