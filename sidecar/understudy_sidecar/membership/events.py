"""What goes into the two state machines, and what comes out.

A link is one authenticated connection; its number is the shell's, and is never used again.
"""

from dataclasses import dataclass

from understudy_protocol import launcher, membership


@dataclass(frozen=True)
class Tick:
    """The time that `deadline()` asked for has come (an early or late one does no harm)."""


# Coordinator ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Received:
    """A member's message. The first one of a link is its Join."""

    link: int
    message: object


@dataclass(frozen=True)
class Dropped:
    """A link has ended. silent: nobody said so, the peer's machine just stopped answering."""

    link: int
    silent: bool


@dataclass(frozen=True)
class Watched:
    """So many observers (the operator, usually) are linked now."""

    observers: int


CoordinatorEvent = Received | Dropped | Watched | Tick


@dataclass(frozen=True)
class Send:
    link: int
    message: object


@dataclass(frozen=True)
class Hangup:
    link: int
    reason: str


@dataclass(frozen=True)
class Say:
    """A decision worth a log line."""

    text: str


@dataclass(frozen=True)
class Adjourn:
    """The job is closed and every member knows: this coordinator has nothing left to do."""


@dataclass(frozen=True)
class Resign:
    """Leave office: another has probably been appointed. Links are hung up, so that their members look for it."""

    reason: str


CoordinatorEffect = Send | Hangup | Say | Adjourn | Resign


# Member -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LauncherUp:
    hello: launcher.LauncherHello


@dataclass(frozen=True)
class FromLauncher:
    message: object


@dataclass(frozen=True)
class LauncherDown:
    pass


@dataclass(frozen=True)
class LinkUp:
    """A connection to a coordinator in office, both sides authenticated."""


@dataclass(frozen=True)
class FromCoordinator:
    message: object


@dataclass(frozen=True)
class LinkDown:
    pass


@dataclass(frozen=True)
class LeaveAsked:
    """The pod is to end (preStop, or SIGTERM to the sidecar)."""

    reason: str
    grace_s: float


MemberEvent = LauncherUp | FromLauncher | LauncherDown | LinkUp | FromCoordinator | LinkDown | LeaveAsked | Tick


@dataclass(frozen=True)
class ToCoordinator:
    message: object


@dataclass(frozen=True)
class ToLauncher:
    message: object


@dataclass(frozen=True)
class Dial:
    """Connect to the coordinator; retry until it works or Hangup comes."""


@dataclass(frozen=True)
class HangupCoordinator:
    reason: str


@dataclass(frozen=True)
class RecordClose:
    """Keep the close where a restarted sidecar and the kubelet find it."""

    close: membership.Close


@dataclass(frozen=True)
class Finish:
    """Nothing is left to do for this pod: the sidecar may end."""


MemberEffect = ToCoordinator | ToLauncher | Dial | HangupCoordinator | RecordClose | Finish | Say
