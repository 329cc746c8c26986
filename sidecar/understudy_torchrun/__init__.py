"""`torchrun --rdzv-backend=understudy`: stock torchrun as a member of a job, in the launcher's place.

understudy_launcher.supervise decides what is to be done, as in the launcher. Here:

    agent.py, calls.py       between that machine and the calls that torchrun's agent makes (pure)
    session.py               the thread that has socket, timers and signals, and the calls that wait for answers
    workers.py, steps.py     torchrun's workers: seen, heard, signalled, never reaped
    handler.py, stores.py    torch's interfaces, the only ones that import torch

torch finds `handlers` by the entry point group torchrun.handlers (package.py writes it), whenever anything imports
torch.distributed.elastic.rendezvous, in a worker as well: so nothing of ours or of torch is imported here.

A torchrun that the pod's command starts has to use this backend: with another one, or with --standalone, it would never
join the job, or train alone. The stub launch-torchrun refuses that where it can read the command; inside of a shell it
cannot. So such a torchrun ends before its first rendezvous. A torchrun that a worker starts is left alone.
"""

import os
import sys
from typing import Any, Callable

BACKEND = "understudy"
USAGE = 64
#: As in understudy_protocol.pod, which is not imported here.
_ENV_TORCHRUN, _ENV_ROUND = "UNDERSTUDY_TORCHRUN", "UNDERSTUDY_ROUND"


def handlers() -> Callable[[Any], Any]:
    """What torch registers under the entry point's name: parameters -> handler."""
    if os.environ.get(_ENV_TORCHRUN) and _ENV_ROUND not in os.environ:
        _refuse_other_backends()
    return _create


def _refuse_other_backends() -> None:
    """RendezvousParameters is what torchrun makes first for each backend, whichever way its user has asked for it."""
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
