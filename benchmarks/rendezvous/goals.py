"""The goals: a recovery takes about a second, so the rendezvous may be a small part of that, at any size."""

from __future__ import annotations

from benchmarks.goals import Goal

GOALS = (
    Goal("first-round", 1024, "seconds", at_most=0.5, peer="nvrx", at_most_ratio=1 / 1.3),
    Goal("first-round", 10000, "seconds", at_most=6.3, peer="nvrx", at_most_ratio=0.5),
    Goal("first-round", 10000, "assign_s", at_most=0.6),
    Goal("next-round", 64, "seconds", at_most=0.02, peer="nvrx", at_most_ratio=1 / 15),
    Goal("next-round", 256, "seconds", at_most=0.09, peer="nvrx", at_most_ratio=1 / 15),
    Goal("next-round", 1024, "seconds", at_most=0.2, peer="nvrx", at_most_ratio=1 / 15),
    Goal("next-round", 4096, "seconds", at_most=0.5, peer="nvrx", at_most_ratio=1 / 15),
    Goal("next-round", 10000, "seconds", at_most=0.6, peer="nvrx", at_most_ratio=1 / 15),
    Goal("failover", 1024, "first_welcome_s", at_most=1.0),
    Goal("silent-node", 64, "seconds", at_most=4.0),
    Goal("rest", 1, "rss_mb", at_most=45.0),
    Goal("rest", 1, "cpu_s_per_minute", at_most=0.12),
    Goal("rest", 10000, "rss_mb", at_most=400.0),
    Goal("rest", 10000, "cpu_s_per_minute", at_most=6.0),
)
