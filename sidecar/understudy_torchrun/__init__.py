"""`torchrun --rdzv-backend=understudy`: stock torchrun as a member of a job, in place of the launcher.

understudy_launcher.supervise makes the decisions, as in the launcher. Here:

    agent.py, calls.py       translate between the supervisor and the calls of torchrun's agent (pure)
    session.py               the thread with the socket, timers and signals, and the calls that wait for answers
    workers.py, steps.py     torchrun's workers: found, watched, signaled, never reaped
    handler.py, stores.py    torch's interfaces; only these import torch

torch finds `handlers` by the entry point group torchrun.handlers (package.py writes it) whenever a process imports
torch.distributed.elastic.rendezvous, also in a worker. So this module imports nothing of Understudy or torch.

A torchrun that the pod's command starts must use this backend: with another one, or with --standalone, it would never
join the job, or train alone. The entry script launch-torchrun rejects that if it can read the command, but not inside a
shell. So such a torchrun exits before its first rendezvous. A torchrun that a worker starts is not affected.
"""

import os
import sys
from typing import Any, Callable

BACKEND = "understudy"
USAGE = 64
#: As in understudy_protocol.pod, which is not imported here.
_ENV_TORCHRUN, _ENV_ROUND = "UNDERSTUDY_TORCHRUN", "UNDERSTUDY_ROUND"


def handlers() -> Callable[[Any], Any]:
    """torch registers the result under the entry point's name: parameters -> handler."""
    if os.environ.get(_ENV_TORCHRUN) and _ENV_ROUND not in os.environ:
        _refuse_other_backends()
    return _create


def _refuse_other_backends() -> None:
    """torchrun creates RendezvousParameters first for each backend, however the user has selected it."""
    api = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    parameters: Any = getattr(api, "RendezvousParameters", None)
    if parameters is None:
        return  # another version of torch: the job's status shows that this pod does not join
    initialize = parameters.__init__

    def initialize_ours(self: Any, backend: str, *others: Any, **named: Any) -> None:
        if backend != BACKEND:
            sys.stderr.write(
                f"understudy torchrun: this torchrun uses the rendezvous backend {backend!r} (--standalone and "
                "--rdzv-backend set it), so it would never join the job. Remove the option, or use launcher.mode Wrap "
                "and a command without torchrun.\n"
            )
            raise SystemExit(USAGE)
        initialize(self, backend, *others, **named)

    parameters.__init__ = initialize_ours


def _create(parameters: Any) -> Any:
    from understudy_torchrun.handler import UnderstudyRendezvous

    return UnderstudyRendezvous(parameters)
