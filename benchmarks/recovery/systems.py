"""The systems that train, with one interface (training.py): started on nodes, perhaps with a spare, then ended."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.install import Peers
from benchmarks.recovery.peers import Agents, InProcess
from benchmarks.recovery.plan import NODES, STORE_APART, Session, System
from benchmarks.recovery.reports import Reports
from benchmarks.recovery.training import Training
from benchmarks.recovery.understudy import Understudy
from benchmarks.rendezvous.network import Node


def nodes_of(session: Session) -> int:
    return NODES + session.spares + (session.case in STORE_APART)


def start(session: Session, reports: Reports, installed: Peers, nodes: Sequence[Node]) -> Training:
    match session.system:
        case System.UNDERSTUDY | System.OUR_TORCHRUN | System.NO_ZYGOTE:
            return Understudy(session, reports, installed, nodes)
        case System.NVRX_INPROCESS:
            return InProcess(session, reports, installed, nodes)
        case _:
            return Agents(session, reports, installed, nodes)
