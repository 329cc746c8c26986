"""What is aimed at: nobody notices the webhook beside what the API server itself does for a pod (some 10 ms)."""

from __future__ import annotations

from benchmarks.goals import Goal

PODS = 2000

GOALS = (Goal("inject", PODS, "p99_ms", at_most=5.0), Goal("reinvoke", PODS, "p99_ms", at_most=5.0))
