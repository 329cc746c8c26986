"""A worker's Python stacks on request: on one signal the standard library's faulthandler writes them to stderr.

Rules: of all threads, also while the main thread sits in C and holds the interpreter's lock. Nothing is imported
before it is asked for. Whoever catches or ignores the signal already keeps it: there is no dump then.
"""

import contextlib

#: A real-time signal (SIGRTMAX-4) that nothing known of uses: libc takes the lowest, valgrind the highest.
SIGNAL = 60
STDERR = 2

_registered = False  # a fork inherits both this and the handler


def dump_on_signal() -> int:
    """From now on. The signal, or 0 if it is somebody else's."""
    global _registered
    if not _registered and _is_free(SIGNAL):
        import faulthandler

        faulthandler.register(SIGNAL, file=STDERR, all_threads=True, chain=False)
        _registered = True
    return SIGNAL if _registered else 0


def _is_free(number: int) -> bool:
    """As the kernel tells it: also of a handler that was set from C. What it does not tell is in use."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        masks = dict(line.split(b":", 1) for line in file if line.startswith((b"SigCgt:", b"SigIgn:")))
        return len(masks) == 2 and not any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())
    return False
