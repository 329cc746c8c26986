"""Unix seconds that never go back: the wall clock once, then the monotonic one.

A machine's wall clock may jump when it is set; a state machine's time may not.
"""

import time

_OFFSET = time.time() - time.monotonic()


def now() -> float:
    return _OFFSET + time.monotonic()
