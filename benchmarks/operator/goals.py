"""The goals: a job of thousands costs the API server only the necessary writes, and the operator almost nothing."""

from __future__ import annotations

from benchmarks.goals import Goal

GOALS = (
    Goal("create", 5000, "created_s", peer="jobset", at_most_ratio=0.9),
    Goal("create", 5000, "running_s", peer="jobset", at_most_ratio=1.1),
    Goal("create-many", 2000, "running_s", peer="jobset", at_most_ratio=1.1),
    Goal("delete", 5000, "seconds", peer="jobset", at_most_ratio=1.0),
    Goal("recreate", 1000, "running_s", peer="jobset", at_most_ratio=0.9),
    Goal("recreate-shipped", 1000, "running_s", peer="jobset", at_most_ratio=0.2),
    Goal("in-place", 5000, "api_writes", at_most=6),
    Goal("rest", 5000, "rss_mb", at_most=400.0),
    Goal("rest", 5000, "cpu_percent", at_most=2.0),
    Goal("start", 5000, "ready_s", at_most=10.0),
    Goal("status", 5000, "seconds", at_most=1.0),
    Goal("recover-beside", 5000, "wait_s", at_most=0.1),
    Goal("pod", 1, "pod_bytes", peer="jobset", at_most_ratio=1.25),
)
