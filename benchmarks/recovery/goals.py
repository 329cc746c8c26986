"""The goals: a lost worker costs the training less than a second; a node without power costs its detection as well."""

from __future__ import annotations

from benchmarks.goals import Goal
from benchmarks.recovery.plan import NODES, WORKERS

_OPTOUT, _TUNED = "torchrun-optout", "torchrun-tuned"

GOALS = (
    Goal("worker", NODES, "first_all_reduce_s", at_most=0.2, peer=_OPTOUT, at_most_ratio=1 / 25),
    Goal("worker", NODES, "first_all_reduce_s", peer="nvrx", at_most_ratio=1 / 10),
    Goal("worker-grace", NODES, "first_all_reduce_s", at_most=2.0),
    Goal("worker-grace-save", NODES, "first_all_reduce_s", at_most=3.0),
    Goal("node-power-off", NODES, "first_all_reduce_s", at_most=5.0, peer=_TUNED, at_most_ratio=1.0),
    Goal("node-power-off", NODES, "first_all_reduce_s", peer="nvrx", at_most_ratio=1.0),
    Goal("node-power-off", NODES, "first_all_reduce_s", peer="nvrx-heartbeats", at_most_ratio=1.0),
    Goal("coordinator-power-off", NODES, "first_all_reduce_s", at_most=10.0),
    Goal("spare-exit", NODES, "exit_s", at_most=0.3),
    Goal("sigterm-faulty", WORKERS, "exit_s", at_most=0.1, of_largest=True),
)
