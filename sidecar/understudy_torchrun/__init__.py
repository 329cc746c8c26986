"""`torchrun --rdzv-backend=understudy`: stock torchrun as a member of a job, in the launcher's place.

    launcher's side of the socket      here
    ---------------------------------  -----------------------------------------------------------------------
    what is to be done                 understudy_launcher.supervise, the same machine
    what torchrun's agent does         agent.py: between that machine and the calls that the agent makes (pure)
    a thread for socket and timers     session.py
    the workers, which are torchrun's  workers.py: seen, signalled, never reaped
    torch's interfaces                 handler.py and stores.py, the only ones that import torch

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
