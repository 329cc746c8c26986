"""What is aimed at: a recovery is about a second, so the rendezvous may be a small part of it, at any size."""

from __future__ import annotations

from benchmarks.goals import Goal

GOALS = (
    Goal("first-round", 64, "seconds", at_most=0.3, peer="nvrx", at_most_ratio=1.0),
    Goal("first-round", 1024, "seconds", at_most=1.0, peer="nvrx", at_most_ratio=1.0),
    Goal("first-round", 10000, "seconds", at_most=10.0, peer="nvrx", at_most_ratio=1.0),
    Goal("next-round", 64, "seconds", at_most=0.1, peer="nvrx", at_most_ratio=0.1),
    Goal("next-round", 1024, "seconds", at_most=0.2, peer="nvrx", at_most_ratio=0.1),
    Goal("next-round", 10000, "seconds", at_most=1.0, peer="nvrx", at_most_ratio=0.1),
    Goal("failover", 64, "office_s", at_most=0.5),
    Goal("failover", 1024, "office_s", at_most=1.0),
    Goal("failover", 1024, "seconds", at_most=2.0),
    Goal("silent-node", 64, "seconds", at_most=4.0),
    Goal("rest", 1, "rss_mb", at_most=50.0),
    Goal("rest", 1, "cpu_s_per_minute", at_most=0.3),
    Goal("rest", 10000, "rss_mb", at_most=1000.0),
    Goal("rest", 10000, "cpu_s_per_minute", at_most=12.0),
)
