"""The goals: no false alarm, and a machine without power is found within 1.5 s if a step takes 0.3 s."""

from benchmarks.goals import Goal

LINKS = 50
GOALS = (
    Goal("quiet-alive", LINKS, "false_alarms", at_most=0.0, of_largest=True),
    Goal("busy-alive", LINKS, "false_alarms", at_most=0.0, of_largest=True),
    Goal("lossy-alive", LINKS, "false_alarms", at_most=0.0, of_largest=True),
    Goal("quiet-off", LINKS, "detected_s", at_most=1.5),
)
