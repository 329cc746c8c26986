"""The errors of an update. Later errors are added as notes to the first one."""

import sys


class UpdateFailed(Exception):
    """The base class of all errors here."""


class StepTimedOut(UpdateFailed):
    """A call did not end within its time limit."""


class EngineRefused(UpdateFailed):
    """An engine answered with an error."""


class EngineUnreachable(UpdateFailed):
    """A server did not answer: it or its connection has ended."""


class AdmissionRefused(UpdateFailed):
    """A gateway rejects this update."""


class UpdateInProgress(UpdateFailed):
    """A replica takes part in another update."""


class NothingTransferred(UpdateFailed):
    """The body of a WeightUpdate ended without a transfer."""


class UpdateNotOpen(UpdateFailed):
    """A WeightUpdate was used outside of its body, or a second time."""


class TransferCancelled(UpdateFailed):
    """The body of a WeightUpdate continued after one of its transfers was canceled, perhaps by the body's own time
    limit.
    """


def note(error: BaseException, text: str) -> None:
    """Add a line to the traceback of this error (PEP 678; before Python 3.11 only to `__notes__`)."""
    if sys.version_info >= (3, 11):
        error.add_note(text)
    else:
        error.__notes__ = [*getattr(error, "__notes__", []), text]


def describe(error: BaseException) -> str:
    """An error in one line."""
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
