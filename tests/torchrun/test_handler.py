"""The rendezvous handler as torch's own code uses it, and a torchrun with another rendezvous. Real torch."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_python
from tests.unit.launcher.fake_sidecar import plain_environment
from understudy_protocol import pod

pytestmark = pytest.mark.timeout(1200)

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


REASONS = """
import json, os, sys
from torch.distributed import run
from understudy_torchrun.hand_over import stock_reason
for options in json.load(sys.stdin):
    try:
        config, entrypoint, _ = run.config_from_args(run.parse_args([*options, "train.py"]))
    except SystemExit:
        print("unknown to this torch")  # an older one
        continue
    print(stock_reason(config, entrypoint, {}).partition(",")[0].partition(" has")[0])
"""


def test_an_option_that_forks_cannot_honor_is_the_reason_for_torchruns_own_workers(packaged: Path, torch: Path) -> None:
    # given each option that the launcher honors or ignores, and each other one
    honored = [
        "--nproc-per-node=2 --role=r --max-restarts=3 --rdzv-id=x --log-dir=/tmp/logs -r 3 -t 3 --local-ranks-filter=0",
        "--nnodes=1:4 --rdzv-backend=c10d --rdzv-endpoint=a:1 --rdzv-conf=timeout=9 --monitor-interval=5 -m",
        "--node-rank=1 --master-addr=a --master-port=1 --local-addr=b --start-method=fork --no-python",
        "--standalone --shutdown-timeout=9",
    ]
    others = [
        "--run-path",
        "--event-log-handler=console",
        "--numa-binding=node",
        "--signals-to-handle=SIGTERM",
        "--virtual-local-rank",
        "--duplicate-stdout-filters=a",
        "--duplicate-stderr-filters=a",
    ]
    options = [text.split() for text in (*honored, *others)]
    command = [torch_python(), "-c", REASONS]
    env = environment(packaged, torch)
    # when torch's parser has read them
    done = subprocess.run(command, input=json.dumps(options), env=env, capture_output=True, text=True, check=False)
    # then the reason names the option
    assert done.returncode == 0, done.stderr
    reasons = done.stdout.splitlines()
    assert set(reasons[: len(honored)]) <= {"", "unknown to this torch"}
    wanted = [text.partition("=")[0] for text in others]
    assert [found for found in reasons[len(honored) :] if "unknown" not in found] == [
        name for name, found in zip(wanted, reasons[len(honored) :], strict=True) if "unknown" not in found
    ]


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
