"""A pod in mode Auto with real torch: its launcher, a command that calls torchrun, and a sidecar of the test."""

from __future__ import annotations

import os
from pathlib import Path

from tests.cluster.torch_install import torch_python
from tests.torchrun.job import LIMIT_S, Member, token
from tests.unit.launcher.fake_sidecar import plain_environment
from understudy_protocol import pod
from understudy_protocol.launcher import StartWorkers, WorkersStarted


def torchrun_script(folder: Path) -> None:
    """The program `torchrun` as pip installs it: the shared installation has none for this machine's Python."""
    path = folder / "bin" / "torchrun"
    path.parent.mkdir(exist_ok=True)
    call = "if __name__ == '__main__': sys.exit(main())"
    path.write_text(f"#!{torch_python()}\nimport sys\nfrom torch.distributed.run import main\n{call}\n")
    path.chmod(0o755)


def environment(folder: Path, torch: Path, nproc: int, **env: str) -> dict[str, str]:
    return plain_environment() | {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": str(torch),
        "HERE": str(folder),
        pod.ENV_SHARED_FOLDER: str(folder),
        pod.ENV_NPROC: str(nproc),
        pod.ENV_MODE: "Auto",
        pod.ENV_RUN_ID: "llm",
        pod.ENV_PRELOAD: "torch.distributed",
        **env,
    }


def start(folder: Path, torch: Path, script: str, *command: str, nproc: int = 1, **env: str) -> Member:
    """A pod whose command is this; {train} in its words is the path of the script."""
    torchrun_script(folder)
    (folder / "train.py").write_text(script)
    words = [word.replace("{train}", str(folder / "train.py")) for word in command]
    stub = ["/bin/sh", str(folder / pod.LAUNCHER_SCRIPT)]
    return Member([*stub, *words], folder, environment(folder, torch, nproc, **env), folder, LIMIT_S)


def begin_round(member: Member, number: int, nproc: int = 1) -> None:
    """Have the only pod of a job start the workers of a round, and wait until they have been started."""
    order_round(member, number, nproc)
    while member.sidecar.expect(WorkersStarted).token != token(number):
        pass


def order_round(member: Member, number: int, nproc: int = 1) -> None:
    port = member.store_port
    member.sidecar.send(StartWorkers(token(number), 0, 1, 0, nproc, "127.0.0.1", port, bool(port)))
