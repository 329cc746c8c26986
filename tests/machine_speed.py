"""A fixed calculation, so that the minutes of two machines can be compared.

One process per core computes at the same time, because two cores of a virtual machine may be one real core's threads.
"""

import hashlib
import os
import time
from concurrent.futures import ProcessPoolExecutor

#: Seconds on the machine for which docs and comments state minutes.
REFERENCE_S = 0.91
HASHES = 2_000_000


def _calculate(_: int) -> float:
    start = time.perf_counter()
    value = b""
    for number in range(HASHES):
        value = hashlib.sha256(value + number.to_bytes(8, "big")).digest()
    return time.perf_counter() - start


def machine_seconds() -> float:
    """The seconds of the slowest core, of the best of three tries: other programs only make it slower."""
    cores = os.cpu_count() or 1
    with ProcessPoolExecutor(cores) as pool:
        return min(max(pool.map(_calculate, range(cores))) for _ in range(3))
