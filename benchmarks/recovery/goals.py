"""What is aimed at: a fault costs the training less than a second, and the steps since its checkpoint."""

from __future__ import annotations

from benchmarks.goals import Goal
from benchmarks.recovery.plan import NODES, WORKERS

_OPTOUT = "torchrun-optout"

GOALS = (
    Goal("worker", NODES, "first_all_reduce_s", at_most=0.2, peer=_OPTOUT, at_most_ratio=1 / 25),
    Goal("worker", NODES, "first_all_reduce_s", peer="nvrx", at_most_ratio=1 / 10),
    Goal("node", NODES, "first_all_reduce_s", at_most=0.5, peer=_OPTOUT, at_most_ratio=1 / 30),
    Goal("coordinator-node", NODES, "first_all_reduce_s", at_most=2.0),
    Goal("spare-exit", NODES, "exit_s", at_most=0.3),
    Goal("sigterm-faulty", WORKERS, "exit_s", at_most=0.1),
)
