"""Python's garbage collector in a process with many long-lived objects: an operator, or a sidecar that coordinates."""

import gc

#: For gc.set_threshold. With Python's defaults (700, 10, 10), all objects are scanned each time that their number has
#: grown by a quarter: with the pods of a job of 5,000, the event loop stands still for 0.2 s. A scan takes 1 ms for
#: each 1,000 objects, so a process that has to answer all the time has small young generations.
FEW_SCANS, SHORT_SCANS = (50_000, 20, 20), (10_000, 2, 1000)


def collect_rarely(thresholds: "tuple[int, int, int]") -> None:
    """Make collections rare, and skip the modules that are imported now. Objects without cycles need no collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*thresholds)
