"""`torchrun --rdzv-backend=understudy`: stock torchrun as a member of a job, in the launcher's place.

understudy_launcher.supervise decides what is to be done, as in the launcher. Here:

    agent.py, calls.py       between that machine and the calls that torchrun's agent makes (pure)
    session.py               the thread that has socket, timers and signals, and the calls that wait for answers
    workers.py, steps.py     torchrun's workers: seen, heard, signalled, never reaped
    handler.py, stores.py    torch's interfaces, the only ones that import torch

torch finds `handlers` by the entry point group torchrun.handlers (package.py writes it), whenever anything imports
torch.distributed.elastic.rendezvous, in a worker as well: so nothing is imported here.
"""

from typing import Any, Callable

BACKEND = "understudy"


def handlers() -> Callable[[Any], Any]:
    """What torch registers under the entry point's name: parameters -> handler."""
    return _create


def _create(parameters: Any) -> Any:
    from understudy_torchrun.handler import UnderstudyRendezvous

    return UnderstudyRendezvous(parameters)
