"""A launcher's process with devices, and a real library whose answers the test sets."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.launcher.fake_sidecar import Launched, children, name_of, round_, wait_for
from understudy_launcher.devices import LIBRARY
from understudy_protocol import pod
from understudy_protocol.launcher import CheckReadiness, Readiness

SILENT = "the device check did not finish within 5 s"

Launch = Callable[..., Launched]
#: GPUS: a file with the number of GPUs; if the file is missing, they hang.
SOURCE = """
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int nvmlInit_v2(void) { return 0; }
const char *nvmlErrorString(int code) { return code == 15 ? "GPU is lost" : "something else"; }
int nvmlDeviceGetCount_v2(unsigned *count) {
    FILE *file = fopen(getenv("GPUS"), "r");
    if (!file) for (;;) pause();
    return fscanf(file, "%u", count) == 1 ? 0 : 999;
}
int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **gpu) { *gpu = (void *)(0x700000000000UL + index); return 0; }
int nvmlDeviceGetMigMode(void *gpu, unsigned *current, unsigned *pending) { return 3; }
int nvmlDeviceGetMemoryInfo(void *gpu, unsigned long long memory[3]) {
    if ((unsigned long)gpu >> 32 != 0x7000) return 2;
    memory[0] = memory[1] = memory[2] = 1;
    return (unsigned long)gpu & 8 ? 15 : 0;
}
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the library."""
    folder = tmp_path_factory.mktemp("nvml")
    (folder / "nvml.c").write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / LIBRARY, folder / "nvml.c"], check=True)
    return folder


def given(
    launch: Launch, library: Path, folder: Path, devices: int, there: int, script: str = "print('trained')"
) -> Launched:
    """A spare with devices, of which some answer."""
    gpus = folder / "gpus"
    gpus.write_text(str(there))
    variables = {
        pod.ENV_DEVICES: str(devices),
        pod.ENV_ZYGOTE: "false",
        "LD_LIBRARY_PATH": str(library),
        "GPUS": str(gpus),
    }
    launched = launch("python3", "-c", script, **variables)
    launched.join()
    return launched


def looker(launched: Launched) -> int:
    """The process of the device check, by its name, which each of the launcher's processes gets after its fork."""
    return next((pid for pid in children(launched.process.pid) if name_of(pid) == "devices"), 0)


def check(launched: Launched, number: int) -> Readiness:
    launched.sidecar.send(CheckReadiness(number))
    return launched.sidecar.expect(Readiness)


def test_a_spare_is_ready_while_all_devices_that_it_was_given_answer(
    launch: Launch, library: Path, folder: Path
) -> None:
    launched = given(launch, library, folder, devices=8, there=8)
    assert check(launched, 1) == Readiness(1, True)

    # when a device is lost, the spare is not ready; it is ready again when the device is back
    (folder / "gpus").write_text("7")
    assert check(launched, 2) == Readiness(2, False, "7 of 8 devices answer", lacks_devices=True)
    (folder / "gpus").write_text("9")
    assert check(launched, 3) == Readiness(3, True)
    wait_for(lambda: not children(launched.process.pid), "no process is left of the checks")


def test_a_driver_that_hangs_does_not_delay_the_launcher(launch: Launch, library: Path, folder: Path) -> None:
    # given devices that hang
    launched = given(launch, library, folder, devices=1, there=1)
    (folder / "gpus").unlink()
    launched.sidecar.send(CheckReadiness(1))
    asks = wait_for(lambda: looker(launched), "devices are asked")

    # then the spare reports that, and the check is killed
    assert launched.sidecar.expect(Readiness) == Readiness(1, False, SILENT)
    wait_for(lambda: not Path(f"/proc/{asks}").exists(), "it is ended")

    # and when they answer again, the spare is ready again
    (folder / "gpus").write_text("1")
    number = 2
    while not check(launched, number).is_ready:
        number += 1


def test_a_library_that_crashes_ends_only_the_device_check(launch: Launch, library: Path, folder: Path) -> None:
    # given a device check that hangs
    launched = given(launch, library, folder, devices=1, there=1)
    (folder / "gpus").unlink()
    readiness, number = Readiness(0, False, SILENT), 0
    while readiness.reason == SILENT:  # on a busy machine it may time out before the kill
        number += 1
        launched.sidecar.send(CheckReadiness(number))
        asks = wait_for(lambda: looker(launched), "devices are asked")
        # when the check crashes
        with contextlib.suppress(ProcessLookupError):
            os.kill(asks, signal.SIGSEGV)
        readiness = launched.sidecar.expect(Readiness)
    # then the spare is not ready for that reason, and its launcher survives
    assert readiness == Readiness(number, False, "the device check ended without a result")
    (folder / "gpus").write_text("1")
    assert check(launched, number + 1) == Readiness(number + 1, True)


def test_a_device_that_is_lost_while_workers_run_is_found(launch: Launch, library: Path, folder: Path) -> None:
    # given a pod of a job whose worker runs
    launched = given(launch, library, folder, 8, 8, "import time; print('trains', flush=True); time.sleep(600)")
    launched.sidecar.send(round_(0, world_size=1))
    launched.prints("[rank 0] trains\n")
    # when a device is lost, then the answer says so, and the worker goes on
    (folder / "gpus").write_text("7")
    launched.sidecar.send(CheckReadiness(1, devices_only=True))
    expected = Readiness(1, False, "7 of 8 devices answer", lacks_devices=True)
    assert launched.sidecar.expect(Readiness) == expected
    (folder / "gpus").write_text("8")
    launched.sidecar.send(CheckReadiness(2, devices_only=True))
    assert launched.sidecar.expect(Readiness) == Readiness(2, True)


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has a device")
def test_a_spare_that_was_given_a_device_and_sees_none_is_not_ready(launch: Launch) -> None:
    launched = launch("python3", "-c", "print('trained')", **{pod.ENV_DEVICES: "1", pod.ENV_ZYGOTE: "false"})
    launched.join()
    readiness = check(launched, 1)
    assert not readiness.is_ready
    assert readiness.reason
