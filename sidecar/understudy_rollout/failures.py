"""What goes wrong in an update, and how what goes wrong later is told with what went wrong first."""

import sys


class UpdateFailed(Exception):
    """Of everything that is raised here by name."""


class StepTimedOut(UpdateFailed):
    """A call had its time."""


class EngineRefused(UpdateFailed):
    """An engine has answered, and did not do it."""


class EngineUnreachable(UpdateFailed):
    """A server did not answer: it is gone, or its connection is."""


class AdmissionRefused(UpdateFailed):
    """A gateway does not take part in this update."""


class UpdateInProgress(UpdateFailed):
    """A replica takes part in another update."""


class NothingTransferred(UpdateFailed):
    """The body of a WeightUpdate ended without a transfer."""


class UpdateNotOpen(UpdateFailed):
    """A WeightUpdate was used outside of its body, or a second time."""


class TransferCancelled(UpdateFailed):
    """The body of a WeightUpdate went on after a transfer of it had been cancelled, by its own time limit maybe."""


def note(error: BaseException, text: str) -> None:
    """Add a line to what a traceback of this error shows (PEP 678; before Python 3.11 only in `__notes__`)."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]


def describe(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
