"""The goals: the webhook takes less time than the API server itself takes for a pod (about 10 ms). Hostile callers
delay the API server's requests by less than 1 s, and the webhook stays within the chart's memory limit.
"""

from __future__ import annotations

from benchmarks.goals import Goal

PODS = 2000
HOSTILE = 1000

GOALS = (
    Goal("inject", PODS, "p99_ms", at_most=5.0),
    Goal("reinvoke", PODS, "p99_ms", at_most=5.0),
    Goal("attacked", HOSTILE, "max_ms", at_most=1000.0, of_largest=True),
    Goal("attacked", HOSTILE, "peak_rss_mb", at_most=256.0, of_largest=True),
)
