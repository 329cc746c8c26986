"""A pod's manifest as two processes of one machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from understudy_launcher.__main__ import read_environment
from understudy_launcher.__main__ import read_settings as launcher_settings
from understudy_local.manifest import (
    PodPlacement,
    devices_of,
    launcher_command,
    launcher_environment,
    pod_files,
    sidecar_environment,
)
from understudy_local.options import Options
from understudy_local.training_job import training_job
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.status import JobStatus
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.shape import job_facts_json
from understudy_sidecar.settings import Settings
from understudy_sidecar.settings import read_settings as sidecar_settings


@pytest.fixture
def place(tmp_path: Path) -> PodPlacement:
    (tmp_path / "own").mkdir()
    (tmp_path / "pod").mkdir()
    return PodPlacement(
        "uid-1", "pod-1", "node-1", "127.93.0.2", tmp_path / "pod", tmp_path / "own", tmp_path / "shipped"
    )


def a_job(**options: Any) -> Job:
    command = ("python", "train.py", "/understudyish")
    return training_job(Options(command, nodes=3, nproc=2, **options), "job-1", 1.0, JobStatus(), deleting=False)


def manifest(index: int | None = 1, **options: Any) -> dict[str, Any]:
    return pod_manifest(a_job(**options), index=index, serial="1", facts="facts", sidecar_image="local")


def settings_of_sidecar(place: PodPlacement, index: int | None = 1, **options: Any) -> Settings:
    """The settings that the sidecar reads from the files that local mode writes."""
    facts = job_facts_json(a_job(**options), "127.93.0.1:8478")
    for file, text in pod_files(place, "01" * 32, "02" * 32, facts).items():
        (place.pod_folder / file).write_text(text)
    return sidecar_settings(sidecar_environment(manifest(index, **options), place, {"PATH": "/bin"}))


def env_of_launcher(place: PodPlacement, **options: Any) -> dict[str, str]:
    """The variables that the launcher reads, after the sidecar has written those of the job."""
    (place.folder / "variables.json").write_text(json.dumps(dict(settings_of_sidecar(place, **options).variables)))
    return read_environment(launcher_environment(manifest(**options), place, {}))


def test_the_sidecar_gets_the_settings_of_a_pod(place: PodPlacement) -> None:
    settings = settings_of_sidecar(place)
    assert (settings.pod_uid, settings.pod_name, settings.node, settings.ip) == (
        "uid-1",
        "pod-1",
        "node-1",
        "127.93.0.2",
    )
    assert (settings.key, settings.operator_key) == (b"\x01" * 32, b"\x02" * 32)
    assert (settings.folder, settings.shipped) == (place.folder, place.shipped)
    assert (settings.coordinator_host, settings.listen, settings.index) == ("127.93.0.1", "127.93.0.2", 1)
    assert (settings.shape.actives, settings.shape.nproc_per_node) == (3, 2)


def test_sidecar_and_workers_get_the_factor_of_slow_ranks(place: PodPlacement) -> None:
    assert settings_of_sidecar(place, slow_rank_percent=200).shape.slow_rank_percent == 200
    env = env_of_launcher(place, slow_rank_percent=0)
    assert env["UNDERSTUDY_SLOW_RANK_PERCENT"] == "0"  # the workers report no collectives


def test_a_spare_has_no_index(place: PodPlacement) -> None:
    assert settings_of_sidecar(place, index=None).index is None


def test_the_launcher_gets_the_variables_of_a_pod(place: PodPlacement) -> None:
    settings = launcher_settings(["x"], env_of_launcher(place, zygote=False, grace_s=7))
    assert (settings.nproc, settings.grace_s, settings.folder) == (2, 7.0, str(place.folder))
    assert settings.zygote is None


def test_workers_get_the_users_environment(place: PodPlacement) -> None:
    env = launcher_environment(manifest(), place, {"HOME": "/home/me", "GLOO_SOCKET_IFNAME": "eth0"})
    assert (env["HOME"], env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("/home/me", "eth0", "lo")


def test_the_command_runs_through_the_entry_script_of_its_own_folder(place: PodPlacement) -> None:
    command = launcher_command(manifest(), place)
    assert command == ["/bin/sh", f"{place.folder}/launch", "python", "train.py", "/understudyish"]


@pytest.mark.parametrize(
    ("node", "devices", "expected"),
    [
        (0, "01234567", ("0", "1")),
        (3, "01234567", ("6", "7")),
        (0, "0123456", None),  # one too few: every member sees all of them
        (0, "", None),
    ],
)
def test_devices_are_distributed_if_there_are_enough(node: int, devices: str, expected: tuple[str, ...] | None) -> None:
    assert devices_of(node, 4, 2, devices) == expected
