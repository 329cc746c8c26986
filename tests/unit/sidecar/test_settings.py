"""A sidecar's settings: from its environment, and from the files that the kubelet writes for it."""

from pathlib import Path

import pytest

from tests.unit.sidecar.pod_files import write_pod_files
from understudy_protocol import pod
from understudy_protocol.pod import JobFacts, JobShape, PodGroup
from understudy_sidecar.settings import SettingsError, read_settings

SHAPE = JobShape("uid", "research", "jobset.llm", 5, 8, 10, 3600.0)
GROUPS = (PodGroup("driver", 0, 1), PodGroup("workers", 1, 3))


def env(folder: Path, place: str) -> dict[str, str]:
    own = {pod.ENV_NODE: "n", pod.ENV_POD_IP: "10.1.0.1", pod.ENV_POD_FOLDER: str(folder)}
    return {**own, pod.ENV_PLACE: place}


def keys(folder: Path) -> None:
    (folder / pod.KEY_FILE).write_text("01" * 32)
    (folder / pod.OPERATOR_KEY_FILE).write_text("02" * 32)


def write_injected(folder: Path) -> None:
    keys(folder)
    write_pod_files(folder, JobFacts(SHAPE, "10.0.0.7:8478", GROUPS))


@pytest.mark.parametrize(
    ("place", "index"),
    [("driver/0/0", 0), ("workers/0/0", 1), ("workers/0/2", 3), ("workers/1/0", 4), ("workers/1/1", None)],
)
def test_an_injected_pod_derives_its_rank_from_its_position_and_pods_after_the_last_are_spares(
    tmp_path: Path, place: str, index: int | None
) -> None:
    write_injected(tmp_path)
    settings = read_settings(env(tmp_path, place))
    assert settings.index == index
    assert settings.shape == SHAPE
    assert (settings.key, settings.operator_key) == (b"\x01" * 32, b"\x02" * 32)
    assert (settings.coordinator_host, settings.coordinator_port) == ("10.0.0.7", 8478)


def test_the_only_pod_of_a_job_has_no_coordinators_address(tmp_path: Path) -> None:
    keys(tmp_path)
    write_pod_files(tmp_path, JobFacts(SHAPE, "", GROUPS))
    settings = read_settings(env(tmp_path, "driver/0/0"))
    assert (settings.coordinator_host, settings.coordinator_port) == ("", 0)


def test_a_sidecar_listens_on_the_usual_port_and_with_host_network_on_its_own(tmp_path: Path) -> None:
    write_injected(tmp_path)
    variables = env(tmp_path, "workers/0/0")
    assert read_settings(variables).port == 8478
    assert read_settings(variables).address == variables[pod.ENV_POD_IP]
    settings = read_settings({**variables, "UNDERSTUDY_MEMBERSHIP_PORT": "24002"})
    assert (settings.port, settings.address) == (24002, f"{variables[pod.ENV_POD_IP]}:24002")


@pytest.mark.parametrize("text", ["x", "0", "65535", "-1", "240020"])
def test_a_port_that_leaves_none_for_probes_is_rejected(tmp_path: Path, text: str) -> None:
    write_injected(tmp_path)
    with pytest.raises(SettingsError, match=r"UNDERSTUDY_MEMBERSHIP_PORT is .*: expected a port"):
        read_settings({**env(tmp_path, "workers/0/0"), "UNDERSTUDY_MEMBERSHIP_PORT": text})


@pytest.mark.parametrize("file", [pod.KEY_FILE, pod.OPERATOR_KEY_FILE])
@pytest.mark.parametrize(
    "content",
    [b"", b"secret", b"01" * 31, b"01" * 33, b"zz" * 32, b"\xff" * 64],
    ids=["empty", "a-word", "too-short", "too-long", "no-digits", "no-text"],
)
def test_a_file_that_has_no_key_is_named_and_not_quoted(tmp_path: Path, file: str, content: bytes) -> None:
    write_injected(tmp_path)
    (tmp_path / file).write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        read_settings(env(tmp_path, "workers/0/0"))
    assert f"{tmp_path / file}: expected" in str(raised.value)
    assert "64 hexadecimal digits, which the operator writes" in str(raised.value)
    assert not content or content.decode(errors="replace") not in str(raised.value)


@pytest.mark.parametrize("file", [pod.KEY_FILE, pod.OPERATOR_KEY_FILE])
def test_a_key_that_is_missing_is_named(tmp_path: Path, file: str) -> None:
    write_injected(tmp_path)
    (tmp_path / file).unlink()
    with pytest.raises(SettingsError, match=file):
        read_settings(env(tmp_path, "workers/0/0"))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    keys(tmp_path)
    with pytest.raises(SettingsError, match=r"job\.json"):
        read_settings(env(tmp_path, "workers/0/0"))


@pytest.mark.parametrize(("variables", "index"), [({"UNDERSTUDY_INDEX": "3"}, 3), ({}, None)], ids=["gang", "spare"])
def test_a_pod_that_the_operator_has_created_knows_its_index(
    tmp_path: Path, variables: dict[str, str], index: int | None
) -> None:
    write_injected(tmp_path)
    own = {pod.ENV_NODE: "n", pod.ENV_POD_IP: "10.1.0.1", pod.ENV_POD_FOLDER: str(tmp_path)}
    settings = read_settings({**own, **variables})
    assert (settings.index, settings.pod_uid, settings.pod_name) == (index, "u", "p")


@pytest.mark.parametrize("file", ["uid", "name"])
def test_a_field_of_the_pod_that_the_kubelet_has_not_written_is_named(tmp_path: Path, file: str) -> None:
    write_injected(tmp_path)
    (tmp_path / file).write_text("")
    with pytest.raises(SettingsError, match=f"/{file} is empty: expected the pod's {file}"):
        read_settings(env(tmp_path, "workers/0/0"))
