"""Benchmarks as a product: generator -> runner -> recorder -> checker.

    plan      what is to be run, in which order: the systems of a case interleaved, never one after the other
    session   one run of one system: real processes, over loopback; gives numbers, or says why there are none
    records   build/bench/NAME.json: one shape for all benchmarks; every finished run is kept at once (--resume)
    goals     a declared table, printed as met or missed, with the ratio to the peer of the same run

Nothing here is an assertion of a test: a slow machine fails no build. docs/benchmarks.md is made from the records.
"""
