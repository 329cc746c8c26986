"""Points in time, durations, and the clock of a reconcile.

Start with reconcile_clock.py: a decision that depends on time asks is_due(), so the reconcile knows when to run again.
"""
