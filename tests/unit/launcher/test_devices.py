"""Which of a container's devices answer: with a stand-in for NVIDIA's library, and with device files."""

# ruff: noqa: N802, N815 - the library's own names

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from understudy_launcher.devices import by_files, by_library, visible_devices

VISIBLE = "NVIDIA_VISIBLE_DEVICES"

OK, NO_PERMISSION, NOT_FOUND, LOST, UNKNOWN = 0, 4, 6, 15, 999
GONE = "GPU is lost (NVML 15)"
WORDS = {LOST: b"GPU is lost", UNKNOWN: b"Unknown Error"}


class Library:
    """libnvidia-ml.so.1 as it answers through ctypes. gpus: the code of each GPU's answer, or a list of its parts'
    codes.
    """

    def __init__(self, *gpus: int | list[int], starts: int = OK) -> None:
        self._gpus, self._starts = gpus, starts

    def nvmlInit_v2(self) -> int:
        return self._starts

    def nvmlErrorString(self, code: int) -> bytes:
        return WORDS.get(code, b"")

    def nvmlDeviceGetCount_v2(self, count: Any) -> int:
        count._obj.value = len(self._gpus)
        return OK

    def nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:
        handle._obj.value = index.value + 1
        gpu = self._gpus[index.value]
        return gpu if gpu == NO_PERMISSION else OK

    def nvmlDeviceGetMigMode(self, handle: Any, current: Any, pending: Any) -> int:
        current._obj.value = pending._obj.value = int(isinstance(self._gpu(handle), list))
        return OK

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, most: Any) -> int:
        most._obj.value = 7
        return OK

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: Any, part: Any) -> int:
        parts = self._gpu(handle)
        assert isinstance(parts, list)
        return parts[index.value] if index.value < len(parts) else NOT_FOUND

    def nvmlDeviceGetMemoryInfo(self, handle: Any, memory: Any) -> int:
        gpu = self._gpu(handle)
        assert isinstance(gpu, int), "a divided GPU answers only root"
        return gpu

    def _gpu(self, handle: Any) -> int | list[int]:
        gpu: int | list[int] = self._gpus[handle.value - 1]
        return gpu


class OldLibrary(Library):
    """A version from before GPUs could be divided."""

    nvmlDeviceGetMigMode = None  # type: ignore[assignment]


@pytest.mark.parametrize(
    ("library", "wanted", "why_not"),
    [
        (Library(OK, OK), 2, ""),
        (Library(OK, OK), 1, ""),
        (OldLibrary(OK, OK), 2, ""),
        (Library(OK), 2, "1 of 2 devices answer"),
        (Library(), 8, "0 of 8 devices answer"),
        (Library(OK, LOST), 2, f"1 of 2 devices answer: GPU 1: {GONE}"),
        (Library(starts=UNKNOWN), 8, "0 of 8 devices answer: Unknown Error (NVML 999)"),
        (Library(NO_PERMISSION, OK), 1, ""),
        (Library(NO_PERMISSION, LOST), 1, f"0 of 1 devices answer: GPU 1: {GONE}"),
        (Library([OK, OK]), 2, ""),
        (Library([OK, NOT_FOUND]), 2, "1 of 2 devices answer"),
        (Library([]), 1, "0 of 1 devices answer"),
        (Library(*[LOST] * 8), 8, "0 of 8 devices answer: " + "; ".join(f"GPU {i}: {GONE}" for i in range(3))),
    ],
)  # fmt: skip
def test_the_devices_that_answer_are_counted(library: Library, wanted: int, why_not: str) -> None:
    assert by_library(library, wanted) == why_not


def test_without_the_library_one_device_file_that_can_be_opened_is_enough(tmp_path: Path) -> None:
    # given no device file
    (tmp_path / "nvidiactl").touch()
    (tmp_path / "nvidia-uvm").touch()
    assert by_files(str(tmp_path)) == (
        f"no device can be opened: there is neither {tmp_path}/nvidia0 nor libnvidia-ml.so.1"
    )

    # given one that cannot be opened as a device
    (tmp_path / "nvidia0").mkdir()
    assert by_files(str(tmp_path)) == f"no device can be opened: {tmp_path}/nvidia0: Is a directory"

    # given one that can be opened
    (tmp_path / "nvidia1").touch()
    assert by_files(str(tmp_path)) == ""


@pytest.mark.parametrize(
    ("visible", "devices"),
    [
        ("", 4),
        ("all", 4),
        ("void", 4),
        ("0,1", 4),
        ("GPU-a,GPU-b,GPU-c,GPU-d", 4),
        ("GPU-a,GPU-a,GPU-b,GPU-b", 2),
        ("MIG-a, MIG-b", 2),
        ("GPU-a,GPU-b,GPU-c,GPU-d,GPU-e", 4),
    ],
)
def test_a_device_that_is_named_twice_counts_once(visible: str, devices: int) -> None:
    assert visible_devices(4, {VISIBLE: visible}) == devices
