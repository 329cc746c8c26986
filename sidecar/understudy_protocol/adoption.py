"""Messages between the operator and a pool's spare that a job has claimed, in a session under the pool's key.

One Adopt a connection, and one answer. A spare keeps the first order. It answers each later Adopt with the job of that
order.
"""

from dataclasses import dataclass

from understudy_protocol.order import Order


@dataclass(frozen=True)
class Adopt:
    """The job that has claimed this spare, and the command of its workers."""

    order: Order


@dataclass(frozen=True)
class Adopted:
    """The spare belongs to this job, and has stored the order."""

    job_uid: str


TO_SPARE = (Adopt,)
TO_OPERATOR = (Adopted,)
