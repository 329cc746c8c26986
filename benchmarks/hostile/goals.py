"""The goals: callers without the key delay a coordinator by less than a member notices."""

from __future__ import annotations

from benchmarks.goals import Goal

CONNECTIONS = 500
#: The hostile connections come from ten addresses, as from ten pods; or from the members' own address, as behind a
#: proxy.
OTHERS, SHARED = "other-addresses", "shared-address"

GOALS = tuple(Goal(case, CONNECTIONS, "p99_ms", at_most=50.0) for case in (OTHERS, SHARED))
