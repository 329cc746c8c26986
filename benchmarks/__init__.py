"""Benchmarks as a product: generator -> runner -> recorder -> checker.

    plan      the sessions, in their order: the systems of a case take turns, and do not run one after the other
    session   one run of one system: real processes, over loopback; returns numbers, or the reason why there are none
    journal   benchmarks/results/NAME.json: every sample, once it is measured (--resume), and each session's command,
              commit, machine and seconds
    records   sums of samples, with the same fields in all benchmarks
    goals     a declared table, printed as met or missed, with the ratio to the peer of the same run

Benchmarks assert nothing: a slow machine fails no build. docs/contributors/benchmarks.md and the table in README.md are
generated from the samples (docs.py), and a unit test fails where they differ.
"""
