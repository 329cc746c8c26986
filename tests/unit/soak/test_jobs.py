"""The soak's trainings are those of examples/ddp, except for worker script, budget, memory limit and clock."""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.cluster import Cluster
from tests.soak import jobs
from tests.soak.invariants import Start
from tests.soak.jobs import SoakTraining, make_trainings, read_starts

EXAMPLE = Path(__file__).parents[3] / "examples" / "ddp" / "trainingjob.yaml"
WORKER = Path(__file__).parents[2] / "soak" / "worker.py"


@pytest.fixture
def trainings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, SoakTraining]:
    """On a cluster on which only kustomize works, and on a machine that need not have a C compiler."""
    monkeypatch.setattr(jobs, "clock_library", lambda cache: cache / "clock.so")
    cluster = SimpleNamespace(
        kubectl=lambda *words: EXAMPLE.read_text(), base_image="base", torch_path=tmp_path / "torch"
    )
    return make_trainings(cast(Cluster, cluster), tmp_path)


def template(training: SoakTraining) -> tuple[dict[str, Any], dict[str, Any]]:
    """The object and its pod template."""
    (item,) = training._example()
    spec = item["spec"]
    job = spec if item["kind"] == "Job" else spec["replicatedJobs"][0]["template"]["spec"]
    return item, job["template"]


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("launcher", ["python3", "-u", "/checkpoints/worker.py"]),
        ("torchrun", ["python3", "-u", "-m", "torch.distributed.run", "/checkpoints/worker.py"]),
        ("injected", ["python3", "-u", "/checkpoints/worker.py"]),
    ],
)
def test_each_training_runs_the_soaks_worker_with_a_memory_limit_and_a_clock(
    trainings: dict[str, SoakTraining], name: str, command: list[str]
) -> None:
    _, pod = template(trainings[name])
    (trainer,) = pod["spec"]["containers"]
    assert trainer["command"] == command
    assert "--steps=2000" in trainer["args"]
    assert "--min-step-seconds=1.0" in trainer["args"]
    assert trainer["resources"]["limits"] == {"memory": "2Gi"}
    assert {"name": "LD_PRELOAD", "value": "/checkpoints/clock.so"} in trainer["env"]


def test_each_training_has_the_budget_of_a_life(trainings: dict[str, SoakTraining]) -> None:
    job, _ = template(trainings["launcher"])
    assert job["spec"]["recovery"]["inPlace"] == {"maxRestarts": 40}
    _, pod = template(trainings["injected"])
    assert pod["metadata"]["annotations"]["understudy.dev/max-restarts"] == "40"


def test_a_worker_reports_its_start_and_runs_the_example_as_its_script(tmp_path: Path) -> None:
    # given an example that prints its arguments, beside a module of its own
    example = tmp_path / "example"
    example.mkdir()
    (example / "beside.py").touch()
    (example / "train.py").write_text("import sys, beside\nprint(__name__, sys.argv)\n")
    shared = tmp_path / "launcher" / "checkpoints"
    shared.mkdir(parents=True)
    (shared / "worker.py").write_text(WORKER.read_text().replace("/example/train.py", f"{example}/train.py"))
    # when two ranks start
    for rank in ("0", "1"):
        done = subprocess.run(
            [sys.executable, shared / "worker.py", "--steps=3"],
            env={"UNDERSTUDY_ROUND": "1.2.3", "RANK": rank, "LOCAL_RANK": rank},
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stdout == f"__main__ ['{example}/train.py', '--steps=3']\n"
    # then both are found, except for an incomplete line
    with (shared / "starts.jsonl").open("a") as file:
        file.write('{"round": "1.2')
    lines = [json.loads(line) for line in (shared / "starts.jsonl").read_text().splitlines()[:2]]
    training = SoakTraining(cast(Cluster, None), shared, "soak", "launcher")
    assert training.starts() == [Start("1.2.3", rank, lines[rank]["host"], lines[rank]["pid"]) for rank in (0, 1)]


def test_a_device_without_space_ends_the_filling(tmp_path: Path) -> None:
    """Closing the file wrote the rest of its buffer again, and the error stopped a soak after 22 faults."""
    # given files that may have 130,000 bytes: the second write lacks 1,072 bytes, which a buffer would keep
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (130_000, before[1]))
    try:
        jobs.fill(tmp_path / "filling")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (tmp_path / "filling").stat().st_size == 130_000


def test_a_record_that_a_full_volume_has_cut_hides_no_other_one() -> None:
    # given a volume that is full while the second rank reports its start, and has room again for the third
    whole = '{"round": "1.1.3", "rank": 0, "host": "a", "pid": 7}\n'
    cut = '{"round": "1.1.3", "rank": 1, "ho'
    after = '{"round": "1.1.4", "rank": 1, "host": "b", "pid": 8}\n'
    # then the whole records are read
    assert read_starts(whole + cut + after) == [Start("1.1.3", 0, "a", 7), Start("1.1.4", 1, "b", 8)]
    assert read_starts(whole + cut) == [Start("1.1.3", 0, "a", 7)]
