"""Facts about torchrun in the words of a command."""

from __future__ import annotations

import time

import pytest

from understudy_protocol.command_words import (
    calls_torchrun,
    max_restarts,
    may_run_python,
    nproc_text,
    program_of_ranks,
    text_calls_torchrun,
)


@pytest.mark.parametrize(
    "command",
    [
        "torchrun train.py",
        "/opt/venv/bin/torchrun train.py",
        "python -m torch.distributed.run train.py",
        "python3.11 -u -X dev -m torch.distributed.launch train.py",
        "python /usr/local/bin/torchrun train.py",
        "env A=1 B=2 torchrun train.py",
        "env A=1 python3 -mtorch.distributed.run train.py",
        "nohup torchrun train.py",
        "numactl --cpunodebind=0 torchrun train.py",
        "timeout 3600 python -m torch.distributed.run train.py",
        "accelerate launch --multi_gpu train.py",
        "/opt/venv/bin/accelerate launch --num_processes 16 --num_machines 2 --use-fsdp train.py",
        "numactl --cpunodebind=0 accelerate launch --use_deepspeed train.py",
        "python -m accelerate.commands.launch --multi-gpu train.py",
    ],
)
def test_a_command_that_calls_torchrun_is_recognized(command: str) -> None:
    assert calls_torchrun(command.split())


@pytest.mark.parametrize(
    "script",
    [
        "cd /app && exec torchrun train.py",
        "pip install x; torchrun a.py",
        "python -m torch.distributed.run a.py",
        "`torchrun a.py`",
        "accelerate launch \\\n  --multi_gpu train.py",
    ],
)
def test_a_call_in_a_shell_script_is_recognized(script: str) -> None:
    assert calls_torchrun(["bash", "-c", script])


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["python", "train.py"],
        ["python", "train.py", "--launcher", "torchrun"],
        ["python", "-c", "print('torchrun')"],
        ["python", "-m", "train", "torch.distributed.run"],
        ["bash", "-c", "python train.py"],
        ["bash", "-c", "# torchrun train.py\npython train.py"],
        ["bash", "-c", "python torchrunner.py; ./my-torchrun"],
        ["env", "LAUNCHER=torchrun", "python", "train.py"],
        ["accelerate", "launch", "train.py"],
        ["accelerate", "test", "--multi_gpu"],
        ["bash", "-c", "accelerate launch train.py && echo --multi_gpu"],
        ["python", "train.py", "accelerate", "launch", "--multi_gpu"],
        ["python", "-m", "accelerate.commands.launch", "train.py"],
    ],
)
def test_any_other_command_is_not(command: list[str]) -> None:
    assert not calls_torchrun(command)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torchrun --nproc-per-node 8 train.py", "8"),
        ("torchrun --nproc_per_node=4 train.py", "4"),
        ("bash -c 'torchrun --nproc-per-node=\"2\" train.py'", "2"),
        ("torchrun --nproc-per-node gpu train.py", "gpu"),
        ("torchrun train.py", ""),
        ("accelerate launch --multi_gpu --num_processes 16 --num_machines 2 train.py", "8"),
        ("accelerate launch --multi_gpu --num-processes=4 train.py", "4"),
        ("accelerate launch --multi_gpu train.py", ""),
        ("torchrun train.py --num_processes 4", ""),
    ],
)
def test_workers_per_pod_are_the_value_of_torchruns_option(text: str, found: str) -> None:
    assert nproc_text(text.split(" ")) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("torchrun --max-restarts 3 train.py", 3),
        ("torchrun --max_restarts=0 train.py", 0),
        ("torchrun --max-restarts=$N train.py", None),
        ("torchrun --max-restarts=3x train.py", None),
        ("torchrun train.py", None),
        ("python train.py --max-restarts 3", None),
    ],
)
def test_restarts_are_a_number_in_the_words_of_a_torchrun(text: str, found: int | None) -> None:
    assert max_restarts(text.split(" ")) == found


@pytest.mark.parametrize(
    ("command", "program"),
    [
        (["deepspeed", "--num_gpus", "8", "train.py"], "deepspeed"),
        (["/opt/venv/bin/deepspeed", "train.py"], "deepspeed"),
        (["env", "A=1", "mpirun", "-np", "8", "python", "train.py"], "mpirun"),
        (["python3", "-m", "deepspeed.launcher.runner", "train.py"], "deepspeed.launcher.runner"),
        (["bash", "-c", "cd /app && deepspeed train.py"], "deepspeed"),
        (["bash", "-c", "set -e\nexec /opt/bin/deepspeed train.py"], "deepspeed"),
        (["bash", "-c", "horovodrun -np 4 python train.py"], "horovodrun"),
        (["bash", "-c", "cd /app; NCCL_DEBUG=INFO OMP_NUM_THREADS=8 deepspeed train.py"], "deepspeed"),
        (["bash", "-c", "A='b' exec mpirun -np 8 python train.py"], "mpirun"),
        (["bash", "-c", "time nohup deepspeed train.py"], "deepspeed"),
    ],
)
def test_a_program_that_starts_all_ranks_of_a_pod_is_recognized(command: list[str], program: str) -> None:
    assert program_of_ranks(command) == program


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["python", "train.py", "--deepspeed", "ds.json"],
        ["python", "-m", "train", "deepspeed"],
        ["torchrun", "train.py", "--deepspeed", "ds.json"],
        ["bash", "-c", "pip install deepspeed && python train.py --deepspeed ds.json"],
        ["bash", "-c", "# deepspeed train.py\npython train.py"],
        ["bash", "-c", "cd deepspeed ; python train.py"],
        ["bash", "-c", "BACKEND=deepspeed python train.py"],
        ["bash", "-c", "A=1 python train.py deepspeed x"],
        ["python", "deepspeed", "train.py"],
    ],
)
def test_its_name_in_another_place_is_not(command: list[str]) -> None:
    assert program_of_ranks(command) == ""


@pytest.mark.parametrize(
    "part",
    ["\n", ";", "a/", "accelerate launch ", "accelerate launch --multi", ";deepspeed", " ", "A=1 ", ";A=", "env "],
)
def test_a_megabyte_of_text_is_read_in_a_moment(part: str) -> None:
    text = part * (1_000_000 // len(part))
    began = time.process_time()
    text_calls_torchrun(text)
    program_of_ranks(["bash", "-c", text])
    nproc_text([text])
    assert time.process_time() - began < 5.0


@pytest.mark.attack(
    "A1",
    "creates a TrainingJob whose command is `env` or a Python with 100,000 words",
    before="each reconcile of the job took 2 s, in which the operator did nothing for other jobs",
)
@pytest.mark.parametrize("command", [["env", "A=1"], ["python3", "-u"], ["python3", "-W"]])
def test_a_command_of_many_words_is_read_in_time_in_proportion_to_them(command: list[str]) -> None:
    words = [command[0], *command[1:] * 600_000]
    began = time.process_time()
    assert not calls_torchrun(words)
    assert program_of_ranks(words) == ""
    assert time.process_time() - began < 2.0


@pytest.mark.parametrize(
    ("words", "may"),
    [
        (["python3.11", "train.py"], True),
        (["/opt/venv/bin/python", "-m", "train"], True),
        (["bash", "-c", "set -e; exec torchrun train.py"], True),
        (["bash", "run.sh"], True),
        (["uv", "run", "train"], True),
        (["sleep", "100"], False),
        (["bash", "-c", "echo python-free; sleep 5"], False),
        (["/bin/sh", "-c", "hostname -f"], False),
    ],
)
def test_a_command_that_names_a_python_program_or_a_script_may_run_python(words: list[str], may: bool) -> None:
    assert may_run_python(words) is may
