"""The rendezvous handler as torch's own code uses it, and a torchrun with another rendezvous. Real torch."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_python
from tests.unit.launcher.fake_sidecar import plain_environment
from understudy_protocol import pod

pytestmark = pytest.mark.timeout(400)

HANDLER = """
import gc, threading, time
from torch.distributed.elastic.rendezvous import RendezvousParameters
from torch.distributed.elastic.rendezvous.registry import get_rendezvous_handler

handler = get_rendezvous_handler(RendezvousParameters("understudy", "", "run", 1, 1))
"""

CLOSED = """
from torch.distributed.elastic.rendezvous import RendezvousClosedError

assert not handler.is_closed()
handler.set_closed()
assert handler.is_closed()
try:
    handler.next_rendezvous()
except RendezvousClosedError:
    print("closed")
"""

DELETED = """
names = lambda: [thread.name for thread in threading.enumerate()]
assert "understudy" in names()
del handler
gc.collect()
until = time.monotonic() + 20
while "understudy" in names():
    assert time.monotonic() < until, names()
    time.sleep(0.01)
print("ended")
"""

TRAIN = "print('trained', flush=True)"


def environment(packaged: Path, torch: Path) -> dict[str, str]:
    return plain_environment() | {"PYTHONPATH": f"{torch}:{packaged}/python", pod.ENV_SHARED_FOLDER: str(packaged)}


@pytest.mark.parametrize(("script", "printed"), [(CLOSED, "closed"), (DELETED, "ended")])
def test_the_handler_keeps_torchs_contract(packaged: Path, torch: Path, script: str, printed: str) -> None:
    command = [torch_python(), "-c", HANDLER + script]
    done = subprocess.run(command, env=environment(packaged, torch), capture_output=True, text=True, check=False)
    assert done.stdout.split() == [printed], done.stderr


@pytest.mark.parametrize("options", ["--stand", "--rdzv-b=static"])  # abbreviations that torchrun accepts
def test_another_rendezvous_inside_of_a_shell_is_refused(
    packaged: Path, torch: Path, tmp_path: Path, options: str
) -> None:
    # given a torchrun inside of a shell, which the entry script cannot read
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    torchrun = f"{torch_python()} -m torch.distributed.run {options} {script}"
    stub = ["/bin/sh", str(packaged / pod.TORCHRUN_SCRIPT), "/bin/sh", "-c", f"{torchrun}; exit $?"]
    # when it starts
    done = subprocess.run(stub, env=environment(packaged, torch), capture_output=True, text=True, check=False)
    # then it reports that and trains nothing
    assert (done.returncode, done.stdout) == (64, ""), done.stderr
    backend = "static" if "static" in options else "c10d"
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("understudy")]
    assert f"this torchrun uses the rendezvous backend {backend!r}" in line
    assert "Traceback" not in done.stderr


def test_a_torchrun_that_a_worker_starts_is_not_changed(packaged: Path, torch: Path, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(TRAIN)
    torchrun = [torch_python(), "-m", "torch.distributed.run", "--standalone", str(script)]
    env = environment(packaged, torch) | {pod.ENV_ROUND: "1.1.0", pod.ENV_TORCHRUN: "1"}
    done = subprocess.run(torchrun, env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "trained\n"), done.stderr
