"""The goals: the transaction, its undo and the gateway are not noticeable beside the engines' own work."""

from __future__ import annotations

from benchmarks.goals import Goal

REPLICAS = 64
RATE = 500  # requests a second
BARE = "bare-calls"

GOALS = (
    Goal("update-overhead", REPLICAS, "seconds", peer=BARE, at_most_ratio=1.05),
    Goal("restore", REPLICAS, "beyond_slowest_s", at_most=0.5),
    Goal("gateway", RATE, "added_p99_ms", at_most=1.0),
)
