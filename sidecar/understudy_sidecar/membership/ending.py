"""The close: the first one stays, it is pushed to everybody, and the coordinator waits for the acknowledgements."""

from understudy_protocol import membership as m
from understudy_protocol.words import CloseReason
from understudy_sidecar.membership.desk import Desk, Doubt, State
from understudy_sidecar.membership.electorate import Tally

#: A member that is frozen for a moment still gets its close; one that is gone holds nobody up for longer.
CLOSE_ACK_S = 3.0


def close(desk: Desk, reason: CloseReason, message: str, now: float) -> None:
    if desk.closed is not None:
        return
    desk.state = State.CLOSED
    desk.version += 1
    desk.closed = m.Close(reason, message)
    desk.close_until = now + CLOSE_ACK_S
    desk.say(f"closed: {reason.value}: {message}")
    desk.close_pending = set(desk.roster.linked)
    desk.broadcast(desk.roster.links(), desk.closed)


def fail(desk: Desk, why: str) -> None:
    """Close the job as failed, once a majority has confirmed that this coordinator is still followed.

    Else one that is cut off, and does not know it yet, could tell its side of a failure while the others train on.
    """
    if desk.closed is None and not desk.fails:
        desk.fails = why
        desk.doubt = Doubt(desk.ask(desk.roster.links()), Tally(desk.keeper.newest))


def all_know(desk: Desk, now: float) -> bool:
    """Whether nobody is left to wait for."""
    return now >= desk.close_until or not desk.close_pending
