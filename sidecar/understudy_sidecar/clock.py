"""Unix seconds that never go back: the wall clock once, then the monotonic one.

A machine's wall clock may jump when it is set; a state machine's time may not.

Whoever gives a peer a limit needs LATE_S too: a timer that fires later than that tells of this process, which was
frozen or has too much to do, and not of the peer. Such a limit starts anew.
"""

import time

LATE_S = 0.25
_OFFSET = time.time() - time.monotonic()


def now() -> float:
    return _OFFSET + time.monotonic()
