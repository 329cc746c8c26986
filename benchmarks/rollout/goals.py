"""The goals: an update and its undo cost little beside the work of the engines, and the gateway little beside nginx."""

from __future__ import annotations

from benchmarks.goals import Goal

REPLICAS = 64
RATE = 500  # requests a second
BARE = "bare-calls"
NGINX = "nginx"
AT_MOST_OF_NGINX = 1.5


def gateway_case(servers: int, streamed: bool) -> str:
    """As the tables name it."""
    return f"gateway-{'streamed' if streamed else 'whole'}" + (f"-{servers}" if servers > 1 else "")


GOALS = (
    Goal("update-overhead", REPLICAS, "seconds", peer=BARE, at_most_ratio=1.05),
    Goal("restore", REPLICAS, "beyond_slowest_s", at_most=0.5),
    *(
        Goal(gateway_case(1, streamed), RATE, "added_p99_ms", peer=NGINX, at_most_ratio=AT_MOST_OF_NGINX)
        for streamed in (False, True)
    ),
)
