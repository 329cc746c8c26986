"""The launcher's settings from its pod."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from understudy_launcher.__main__ import SettingError, main, read_environment, read_settings
from understudy_launcher.phases import OnSigterm
from understudy_launcher.snapshot_storage import StorageSettings
from understudy_protocol import pod

MISCONFIGURED = 78
USAGE = 64


def test_a_pod_without_settings_gets_the_defaults() -> None:
    settings = read_settings(["train"], {})
    assert (settings.nproc, settings.grace_s, settings.folder) == (1, 30.0, "/understudy")
    assert settings.socket == "/understudy/sidecar.sock"
    assert settings.step_timeout_s == 0.0
    assert settings.devices == 0
    assert settings.worker_grace_period_s is None
    assert (settings.on_sigterm, settings.log_prefix) == (OnSigterm.AUTO, True)
    assert read_settings(["python3", "-c", "pass"], {}).zygote is not None


def test_a_pod_can_set_everything() -> None:
    env = {pod.ENV_NPROC: "8", pod.ENV_GRACE: "600", pod.ENV_SHARED_FOLDER: "/s", pod.ENV_STEP_TIMEOUT: "90"}
    settings = read_settings(["train"], env | {pod.ENV_DEVICES: "4", pod.ENV_WORKER_GRACE_PERIOD: "0"})
    assert settings.devices == 4
    assert settings.worker_grace_period_s == 0.0
    assert (settings.nproc, settings.grace_s, settings.socket) == (8, 600.0, "/s/sidecar.sock")
    assert settings.step_timeout_s == 90.0


def test_the_variables_of_the_job_come_from_the_file_that_the_sidecar_writes(tmp_path: Path) -> None:
    # given a pod with a variable that the file sets to another value
    pods = {"UNDERSTUDY_FOLDER": str(tmp_path), "UNDERSTUDY_NPROC_PER_NODE": "8", "UNDERSTUDY_MODE": "Wrap"}
    (tmp_path / "variables.json").write_text(json.dumps({"UNDERSTUDY_MODE": "Auto", "UNDERSTUDY_NNODES": "5000"}))
    # then the job's values count: a variable of the user (envFrom) does not change them
    env = read_environment(pods)
    assert env == {**pods, "UNDERSTUDY_MODE": "Auto", "UNDERSTUDY_NNODES": "5000"}
    settings = read_settings(["train"], env)
    assert (settings.is_auto, settings.nproc) == (True, 8)
    assert settings.env["UNDERSTUDY_NNODES"] == "5000"


def test_a_pod_whose_job_has_no_file_of_variables_has_its_own(tmp_path: Path) -> None:
    assert read_environment({"UNDERSTUDY_FOLDER": str(tmp_path)}) == {"UNDERSTUDY_FOLDER": str(tmp_path)}


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[", "variables.json: cannot be read: "),
        ("[1]", "variables.json: expected a JSON object with texts, which the sidecar writes"),
        ('{"UNDERSTUDY_MODE": 1}', "variables.json: expected a JSON object with texts, which the sidecar writes"),
    ],
)
def test_a_broken_file_of_variables_ends_the_container_with_a_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], text: str, problem: str
) -> None:
    (tmp_path / "variables.json").write_text(text)
    monkeypatch.setenv("UNDERSTUDY_FOLDER", str(tmp_path))
    assert main(["--", "train"]) == MISCONFIGURED
    assert problem in capfd.readouterr().err


def test_a_pod_writes_snapshots_to_storage_if_it_has_a_folder() -> None:
    assert read_settings(["train"], {}).snapshot_storage is None
    env = {pod.ENV_SNAPSHOT_STORAGE_PATH: "/checkpoints/snapshots"}
    assert read_settings(["train"], env).snapshot_storage == StorageSettings("/checkpoints/snapshots", 1000, 2)
    env |= {pod.ENV_SNAPSHOT_STORAGE_EVERY: "50", pod.ENV_SNAPSHOT_STORAGE_KEEP: "3"}
    assert read_settings(["train"], env).snapshot_storage == StorageSettings("/checkpoints/snapshots", 50, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (pod.ENV_NPROC, "eight"),
        (pod.ENV_NPROC, "0"),
        (pod.ENV_NPROC, "1.5"),
        (pod.ENV_NPROC, "nan"),
        (pod.ENV_GRACE, "x"),
        (pod.ENV_STEP_TIMEOUT, "10m"),
        (pod.ENV_WORKER_GRACE_PERIOD, "5s"),
        (pod.ENV_SNAPSHOT_STORAGE_PATH, "checkpoints"),
    ],
)
def test_an_invalid_setting_is_named(name: str, value: str) -> None:
    with pytest.raises(SettingError, match=f"{name}='{value}'"):
        read_settings(["train"], {name: value})


def test_an_invalid_setting_ends_the_launcher(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(pod.ENV_NPROC, "eight")
    assert main(["--", "train"]) == MISCONFIGURED
    assert main(["--"]) == USAGE
    assert (
        "understudy launcher: UNDERSTUDY_NPROC_PER_NODE='eight': expected a number of workers" in capfd.readouterr().err
    )
