"""Training frameworks through faults: `make frameworks` (compatibility matrix: docs/reference/frameworks.md).

scripts/     one script for each framework, as the framework's documentation writes it. They know nothing of Understudy
cases        which scripts run, by which command, with which options
training     a run of `understudy local` from a user's side, and the same script without Understudy
results      benchmarks/results/frameworks.json, and the rows of the table
"""
