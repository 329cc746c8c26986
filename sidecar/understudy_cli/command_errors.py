"""The errors that a command reports in one line, and the exit codes."""

from enum import IntEnum


class ExitCode(IntEnum):
    DONE = 0
    PROBLEM_FOUND = 1
    WRONG_CALL = 2
    NOT_FOUND = 3
    NO_ANSWER = 4
    INTERRUPTED = 130


class CommandFailed(Exception):
    """The text has the observation and the next step."""

    def __init__(self, message: str, code: ExitCode) -> None:
        super().__init__(message)
        self.code = code


class WrongCall(CommandFailed):
    """An option, an argument or a file of the user is wrong."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.WRONG_CALL)


class NotFound(CommandFailed):
    """The cluster has no such object."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.NOT_FOUND)


class NotPossible(CommandFailed):
    """The job cannot do this now, or has not done it in time."""

    def __init__(self, message: str) -> None:
        super().__init__(message, ExitCode.PROBLEM_FOUND)


class NoAnswer(CommandFailed):
    """The API server does not respond, or rejects a request."""

    def __init__(self, message: str, status: int = 0) -> None:
        super().__init__(message, ExitCode.NO_ANSWER)
        self.status = status  # of the HTTP answer; 0: there was none
