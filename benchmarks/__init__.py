"""Benchmarks as a product: generator -> runner -> recorder -> checker.

    plan      what is to be run, in which order: the systems of a case interleaved, never one after the other
    session   one run of one system: real processes, over loopback; gives numbers, or says why there are none
    journal   benchmarks/results/NAME.json: every sample, once it is measured (--resume), and each session's command,
              commit, machine and seconds
    records   sums of samples, in one shape for all benchmarks
    goals     a declared table, printed as met or missed, with the ratio to the peer of the same run

Nothing here is an assertion of a test: a slow machine fails no build. docs/contributors/benchmarks.md and the table in
README.md are generated from the samples (docs.py), and a unit test fails where they differ.
"""
