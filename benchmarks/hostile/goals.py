"""What is aimed at: nobody without the key delays a coordinator by more than a member notices."""

from __future__ import annotations

from benchmarks.goals import Goal

CONNECTIONS = 500
#: The hostile connections come from ten addresses, as from ten pods; or from the one that all members have, as behind
#: a proxy.
OTHERS, SHARED = "other-addresses", "shared-address"

GOALS = tuple(Goal(case, CONNECTIONS, "p99_ms", at_most=50.0) for case in (OTHERS, SHARED))
