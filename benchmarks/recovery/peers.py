"""The peers as benchmarked systems: torchrun's agents, NVRx's launchers, and NVRx's in-process restart.

Four nodes train, and a fifth is the spare. The first one hosts the store, or a node that does not train does (`store
apart`). The store is torch's TCPStore, or NVRx's own control process.
"""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from benchmarks.child import CHECKOUT, LOGS
from benchmarks.install import Peers
from benchmarks.recovery.plan import NODES, STORE_APART, Session, System
from benchmarks.recovery.reports import Reports
from benchmarks.recovery.training import TRAIN, Training, is_idle, until
from benchmarks.rendezvous.network import Node

PORT = 29400
_NVRX = "nvidia_resiliency_ext.fault_tolerance"
_INPROCESS = Path(__file__).with_name("inprocess_train.py")
_OF: Mapping[System, Mapping[str, str]] = {
    System.TORCHRUN: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "0"},
    System.TORCHRUN_OPTOUT: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    System.TORCHRUN_TUNED: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    System.NVRX: {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1"},
    System.NVRX_HEARTBEATS: {
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "NVRX_ENABLE_MULTI_LAUNCHERS_PER_NODE": "1",
        "BENCH_HEARTBEATS": "1",
    },
}
_OF_NVRX = (System.NVRX, System.NVRX_HEARTBEATS)
#: Options of NVRx's FaultToleranceConfig. NVRx advises a timeout above the longest step. By default it sends no
#: heartbeats, and checks every 5 s.
_HEARTBEATS = (
    "--ft-initial-rank-heartbeat-timeout=60",
    "--ft-rank-heartbeat-timeout=3",
    "--ft-workload-check-interval=1",
)
#: Options of torch's RendezvousSettings: how often a node sends a keep-alive heartbeat, and after how many missed ones
#: it is considered dead. The defaults are 5 s and 3.
_TUNED = "keep_alive_interval=1,keep_alive_max_attempt=3"
_STORE = """
import sys, threading, torch.distributed as dist
store = dist.TCPStore(sys.argv[1], int(sys.argv[2]), is_master=True, wait_for_workers=False, multi_tenant=True)
print("listening", flush=True)
threading.Event().wait()
"""


@dataclass(frozen=True)
class Agent:
    """A launcher, or a process that runs without one."""

    process: subprocess.Popen[bytes]
    node: Node


class OnNodes(Training):
    """Processes on nodes, one on each. Those of lost nodes are started again, and then are the spare."""

    def __init__(self, session: Session, reports: Reports, installed: Peers, nodes: Sequence[Node]) -> None:
        super().__init__(session, reports, installed, nodes)
        self._system, self._is_apart = session.system, session.case in STORE_APART
        self._host = nodes[-1] if self._is_apart else nodes[0]
        self.env |= {"PYTHONPATH": installed.env["PYTHONPATH"], "OMP_NUM_THREADS": "1", **_OF.get(session.system, {})}
        self._logs: list[IO[bytes]] = []
        self._agents: list[Agent] = []

    def alive(self) -> str:
        codes = [agent.process.poll() for agent in self._agents]
        lost = sum(code is not None for code in codes)
        return "" if lost <= self.spares else f"{lost} of its launchers have ended, with codes {codes}"

    def power_off_node(self) -> float:
        """If the first node hosts the store, it is not chosen."""
        present = self._agents if self._is_apart else self._agents[1:]
        return next(agent for agent in present if self._trains(agent)).node.power_off()

    def power_off_coordinator(self) -> float:
        return self._agents[0].node.power_off()

    def spare(self) -> int:
        return self._agents[-1].process.pid

    def stop(self) -> None:
        super().stop()
        for agent in self._agents:
            agent.process.wait()
        for log in self._logs:
            log.close()

    def _trains(self, agent: Agent) -> bool:
        if agent.process.poll() is not None:
            return False
        return bool({line.pid for line in self.reports.lines()} & set(agent.node.processes()))

    def _start(self, node: Node, command: Sequence[str], env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        self._logs.append((LOGS / f"recovery-{self._system.value}-{len(self._logs)}.log").open("wb"))
        return subprocess.Popen(
            [*node.inside, self.python, "-W", "ignore", *command],
            env={**self.env, **env},
            stdout=self._logs[-1],
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def _start_store(self) -> None:
        """Start a store without a launcher, as torch's rendezvous hosts it."""
        self._start(self._host, ["-c", _STORE, self._host.ip, str(PORT)], {})
        log = Path(self._logs[-1].name)
        until(lambda: b"listening" in log.read_bytes(), "the store listens")

    def _spare_is_idle(self) -> bool:
        return is_idle(psutil.Process(self._agents[-1].process.pid))


class Agents(OnNodes):
    """torchrun's agents, or NVRx's launchers."""

    def __init__(self, session: Session, reports: Reports, installed: Peers, nodes: Sequence[Node]) -> None:
        super().__init__(session, reports, installed, nodes)
        self._number = 0
        if self._is_apart:
            self._start_apart()
        for node in nodes[:NODES]:
            self._start_agent(node)
        if session.spares:
            self.await_start()
            self._start_agent(nodes[NODES])

    def ready(self) -> None:
        """Start a lost launcher again: it is the spare now. Wait until it has imported its modules."""
        for number, agent in enumerate(self._agents):
            if agent.process.poll() is not None:
                self._agents[number] = self._agents[-1]
                self._agents.pop()
                agent.node.plug_in_the_cable()
                self._start_agent(agent.node)
                break
        if self.spares:
            until(self._spare_is_idle, "the spare waits")

    def _start_apart(self) -> None:
        if self._system not in _OF_NVRX:
            self._start_store()
            return
        sizes = [f"--nnodes={NODES}:{NODES + self.spares}", "--rdzv-backend=c10d", f"--rdzv-id=bench-{PORT}"]
        where = [f"--rdzv-endpoint={self._host.ip}:{PORT}", f"--local-addr={self._host.ip}"]
        self._start(self._host, ["-m", f"{_NVRX}.control_plane", *sizes, *where, "--ft-enable-log-server=false"], {})

    def _start_agent(self, node: Node) -> None:
        number, self._number = self._number, self._number + 1
        named = {"NODEID": str(number), "GROUP_RANK": str(number)}
        command = self._command(node, is_host=number == 0 and not self._is_apart)
        self._agents.append(Agent(self._start(node, [*command, str(TRAIN)], named), node))

    def _command(self, node: Node, *, is_host: bool) -> list[str]:
        nvrx = self._system in _OF_NVRX
        most = NODES + self.spares if nvrx else NODES  # NVRx counts the spare; in torchrun it waits outside
        tuned = f",{_TUNED}" if self._system is System.TORCHRUN_TUNED else ""
        return [
            *("-m", f"{_NVRX}.launcher" if nvrx else "torch.distributed.run"),
            f"--nnodes={NODES}:{most}",
            "--nproc-per-node=1",
            "--max-restarts=100",
            "--rdzv-backend=c10d",
            f"--rdzv-endpoint={self._host.ip}:{PORT}",
            f"--rdzv-id=bench-{PORT}",
            f"--rdzv-conf=is_host={int(is_host)}{tuned}",
            f"--local-addr={node.ip}",
            *(["--ft-gpu-memory-reclaim-timeout=0"] if nvrx else []),
            *(_HEARTBEATS if self._system is System.NVRX_HEARTBEATS else ()),
        ]


class InProcess(OnNodes):
    """NVRx's in-process restart: no launcher, and the fifth process is a reserve rank (inprocess_train.py).

    Without LOCAL_RANK the wrapper checks no GPU before a restart. Its check would fail, because the machine has none.
    """

    def __init__(self, session: Session, reports: Reports, installed: Peers, nodes: Sequence[Node]) -> None:
        super().__init__(session, reports, installed, nodes)
        if self._is_apart:
            self._start_store()
        for rank, node in enumerate(nodes[: NODES + self.spares]):
            env = {
                "RANK": str(rank),
                "WORLD_SIZE": str(NODES + self.spares),
                "MASTER_ADDR": self._host.ip,
                "MASTER_PORT": str(PORT),
                "BENCH_ACTIVE": str(NODES),
                "PYTHONPATH": f"{CHECKOUT}:{self.env['PYTHONPATH']}",
            }
            self._agents.append(Agent(self._start(node, [str(_INPROCESS)], env), node))

    def ready(self) -> None:
        until(self._spare_is_idle, "the reserve rank waits")

    def rank_to_kill(self, run: int) -> int:
        """Never rank 0, whose process hosts the store: a lost store is another case."""
        return 1 + run % (NODES - 1)
