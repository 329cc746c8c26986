"""What a sidecar is told: by its environment, or, where it was injected, by its place and the file beside the key."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from understudy_protocol import pod
from understudy_protocol.pod import Injected, JobShape, PodGroup
from understudy_sidecar.settings import SettingsError, read_settings

SHAPE = JobShape("uid", "research", "jobset.llm", 5, 8, 10, 3600.0)
GROUPS = (PodGroup("driver", 0, 1), PodGroup("workers", 1, 3))


def env(folder: Path, place: str) -> dict[str, str]:
    own = {pod.ENV_POD_UID: "u", pod.ENV_POD_NAME: "p", pod.ENV_NODE: "n", pod.ENV_POD_IP: "10.1.0.1"}
    return {**own, pod.ENV_KEY_FOLDER: str(folder), pod.ENV_PLACE: place}


def told(folder: Path) -> None:
    (folder / pod.KEY_FILE).write_text("key")
    injected = Injected(SHAPE, "10.0.0.7:8478", GROUPS)
    (folder / pod.INJECTED_FILE).write_text(json.dumps(asdict(injected)))


@pytest.mark.parametrize(
    ("place", "index"),
    [("driver/0/0", 0), ("workers/0/0", 1), ("workers/0/2", 3), ("workers/1/0", 4), ("workers/1/1", None)],
)
def test_an_injected_pod_finds_its_rank_by_its_place_and_who_comes_after_the_last_is_a_spare(
    tmp_path: Path, place: str, index: int | None
) -> None:
    told(tmp_path)
    settings = read_settings(env(tmp_path, place))
    assert settings.index == index
    assert settings.shape == SHAPE
    assert (settings.coordinator_host, settings.coordinator_port) == ("10.0.0.7", 8478)


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    (tmp_path / pod.KEY_FILE).write_text("key")
    with pytest.raises(SettingsError, match=r"injected\.json"):
        read_settings(env(tmp_path, "workers/0/0"))
