"""Python's garbage collector in a process with many long-lived objects: an operator, or a sidecar that coordinates."""

import gc

#: New objects between two collections of the young ones. With Python's default of 700, each growth of the objects by a
#: quarter leads to a scan of all of them: with the pods of a job of 5,000, the event loop stands still for 0.2 s.
OBJECTS = 50_000


def collect_rarely() -> None:
    """Make collections rare, and skip the modules that are imported now. Objects without cycles need no collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(OBJECTS, 20, 20)
