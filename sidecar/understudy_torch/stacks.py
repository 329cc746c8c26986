"""A worker's Python stacks on request: on one signal the standard library's faulthandler writes them to stderr.

Rules: it dumps all threads, also while the main thread runs C code that keeps the interpreter's lock. Nothing is
imported until it is needed. If the process already handles or ignores the signal, that remains, and there is no dump.
"""

import contextlib

#: A real-time signal (SIGRTMAX-4) without known users: libc uses the lowest, valgrind the highest.
SIGNAL = 60
STDERR = 2

_registered = False  # a fork inherits both this and the handler


def dump_on_signal() -> int:
    """Install the handler. Return the signal, or 0 if the process uses it otherwise."""
    global _registered
    if not _registered and is_free(SIGNAL):
        import faulthandler

        faulthandler.register(SIGNAL, file=STDERR, all_threads=True, chain=False)
        _registered = True
    return SIGNAL if _registered else 0


def is_free(number: int) -> bool:
    """From the kernel's masks, so a handler that was set from C counts too. False if they cannot be read."""
    with contextlib.suppress(OSError), open("/proc/self/status", "rb") as file:
        masks = dict(line.split(b":", 1) for line in file if line.startswith((b"SigCgt:", b"SigIgn:")))
        return len(masks) == 2 and not any(int(mask, 16) >> (number - 1) & 1 for mask in masks.values())
    return False
