"""Understudy as a benchmarked system: local mode on network namespaces (local_nodes.py)."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Sequence

import psutil

from benchmarks.child import CHECKOUT, LOGS, ChildFailed
from benchmarks.install import Peers
from benchmarks.recovery.local_nodes import RESTORE
from benchmarks.recovery.plan import GRACE_S, Case, Session, System
from benchmarks.recovery.reports import Reports
from benchmarks.recovery.training import SETTLE_S, START_S, TRAIN, Training, until
from benchmarks.rendezvous.network import Node
from understudy_local import control, run_folder
from understudy_local.run_folder import RunFolder
from understudy_protocol import pod

_LAUNCHER = "understudy launcher: pid="


class Understudy(Training):
    def __init__(self, session: Session, reports: Reports, installed: Peers, nodes: Sequence[Node]) -> None:
        super().__init__(session, reports, installed, nodes)
        self._name, self._zygote = f"bench-{os.getpid()}", session.system is not System.NO_ZYGOTE
        self._off = ""
        if session.case in (Case.WORKER_GRACE, Case.WORKER_GRACE_SAVE):
            self.env[pod.ENV_WORKER_GRACE_PERIOD] = f"{GRACE_S:.0f}"
        paths = [str(CHECKOUT), str(CHECKOUT / "operator"), str(CHECKOUT / "sidecar"), installed.env["PYTHONPATH"]]
        named = ",".join(f"{node.name}={node.ip}" for node in nodes)
        requests = ["--name", self._name, "--nodes", named, "--spares", str(session.spares)]
        requests += [] if self._zygote else ["--no-zygote"]
        torchrun = ["-m", "torch.distributed.run", "--nproc-per-node=1"] if session.system is System.OUR_TORCHRUN else []
        with (LOGS / f"recovery-{session.system.value}.log").open("w") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.recovery.local_nodes", *requests, "--", self.python, *torchrun, str(TRAIN)],
                env={**self.env, "PYTHONPATH": ":".join(paths)},
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=CHECKOUT,
            )

    def alive(self) -> str:
        return "" if self._process.poll() is None else f"it ended with code {self._process.returncode}"

    def ready(self) -> None:
        """All members are there, and each member's newest launcher has its fork server, if it uses one."""
        if self._off:
            before = self._log(self._off).count(_LAUNCHER)
            control.ask(self._folder().control, {"kill": f"{RESTORE}{self._off}"})
            until(lambda: self._log(self._off).count(_LAUNCHER) > before, f"{self._off} has a new launcher")
            self._off = ""
        until(lambda: self._exists() and self._warm(), "all members are warm")

    def power_off_node(self) -> float:
        return self._power_off(
            next(str(x["node"]) for x in self._show() if x["role"] == "active" and not x["coordinates"])
        )

    def power_off_coordinator(self) -> float:
        """If a spare is the coordinator, give it ranks first. Otherwise no rank would be lost."""
        if not any(x["role"] == "active" and x["coordinates"] for x in self._show()):
            at = self.power_off_node()
            self.reports.last_of_all("step", at, START_S, self.alive)
            self.ready()
            time.sleep(SETTLE_S)
        return self._power_off(next(str(x["node"]) for x in self._show() if x["coordinates"]))

    def spare(self) -> int:
        spare = next(x["node"] for x in self._show() if x["role"] == "spare")
        return _launcher_on(str(spare), psutil.Process(self._process.pid))

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()
        super().stop()
        logs = LOGS / f"{self._name}-nodes"
        logs.mkdir(exist_ok=True)
        for path in self._folder().logs.glob("node-*.log"):
            (logs / path.name).write_text(path.read_text(errors="replace"))
        self._folder().clear()

    def _power_off(self, node: str) -> float:
        self._off = node
        return float(control.ask(self._folder().control, {"kill": node})["at"])

    def _folder(self) -> RunFolder:
        return run_folder.of(self._name)

    def _log(self, node: str) -> str:
        return self._folder().log(node).read_text()

    def _show(self) -> list[dict[str, object]]:
        with contextlib.suppress(OSError):
            members: list[dict[str, object]] = control.ask(self._folder().control, {"show": True})["members"]
            return members
        return []

    def _exists(self) -> bool:
        members = self._show()
        return len(members) == len(self.nodes) and all(x["state"] in ("running", "warm") for x in members)

    def _warm(self) -> bool:
        """Whether the newest launcher of each node has logged that its fork server is ready."""
        logs = [path.read_text() for path in self._folder().logs.glob("node-*.log")]
        return not self._zygote or all("the fork server is ready" in log.rpartition(_LAUNCHER)[2] for log in logs)


def _launcher_on(node: str, run: psutil.Process) -> int:
    for process in run.children():
        if "launcher.pyz" in " ".join(process.cmdline()):
            log = process.environ()["UNDERSTUDY_FOLDER"]
            if _node_of(run, log) == node:
                return process.pid
    raise ChildFailed(f"no launcher runs on {node}")


def _node_of(run: psutil.Process, folder: str) -> str:
    """The node of a launcher, from the sidecar of the same folder: a launcher does not get its node."""
    for process in run.children():
        env = process.environ()
        if "understudy_sidecar" in process.cmdline() and env["UNDERSTUDY_FOLDER"] == folder:
            return env["UNDERSTUDY_NODE"]
    return ""
