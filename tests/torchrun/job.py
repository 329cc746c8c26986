"""A job whose members are torchrun processes, as in their pods, and whose sidecars a test simulates step by step."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cluster.torch_install import torch_python
from tests.unit.launcher.fake_sidecar import Launched, plain_environment
from understudy_protocol import pod
from understudy_protocol.enums import RoundToken
from understudy_protocol.launcher import LauncherHello, NextPort, StartWorkers, WorkersStarted

#: A limit for work that takes seconds on a quiet machine: four processes that import torch at once.
#: Long: the suite has a small share of the machine while the end-to-end tests run beside it, and is five times as slow.
LIMIT_S = 300.0


class Member(Launched):
    """A torchrun's process, and the sidecar of its pod."""

    @property
    def store_port(self) -> int:
        """The port of the store that it has offered last."""
        messages = [message for message in self.sidecar.heard if isinstance(message, (LauncherHello, NextPort))]
        return messages[-1].store_port

    @property
    def traceback(self) -> bool:
        return "Traceback" in self.err


class Job:
    """nproc: workers per member."""

    def __init__(self, torch: Path, folder: Callable[[], Path]) -> None:
        self._torch, self._folder = torch, folder
        self.nproc = 1
        self.members: list[Member] = []

    def start(self, script: str, **env: str) -> Member:
        """A member that runs a Python script, and waits for its first round."""
        folder = self._folder()
        (folder / "train.py").write_text(script)
        whole = plain_environment() | {
            "PYTHONPATH": str(self._torch),
            "HERE": str(folder),
            "OMP_NUM_THREADS": "1",
            pod.ENV_SHARED_FOLDER: str(folder),
            pod.ENV_NPROC: str(self.nproc),
            **env,
        }
        # Like the pip-installed script `torchrun`; the shared installation has none for this machine's Python.
        torchrun = [torch_python(), "-m", "torch.distributed.run", str(folder / "train.py")]
        entry_script = ["/bin/sh", str(folder / pod.TORCHRUN_SCRIPT)]
        self.members.append(Member([*entry_script, *torchrun], folder, whole, folder, LIMIT_S))
        return self.members[-1]

    def join(self, *members: Member) -> None:
        for member in members:
            member.sidecar.listen()
        for member in members:
            member.sidecar.accept()

    def round(self, number: int, *members: Member) -> None:
        """Have them start the workers of a round, the first of them as rank 0, and wait until all workers run."""
        self.begin_round(number, *members)
        for member in members:
            while member.sidecar.expect(WorkersStarted).token != token(number):
                pass

    def begin_round(self, number: int, *members: Member) -> None:
        """Have them start the workers of a round, the first of them as rank 0."""
        port = members[0].store_port
        size = len(members)
        for rank, member in enumerate(members):
            first, world = rank * self.nproc, size * self.nproc
            member.sidecar.send(StartWorkers(token(number), rank, size, first, world, "127.0.0.1", port, bool(port)))


def token(number: int) -> RoundToken:
    return RoundToken(1, 1, number)


def alone(script: str) -> str:
    """A worker that needs no torch."""
    return f"import os, signal, sys, time\nhere = os.environ['HERE']\n{script}"
