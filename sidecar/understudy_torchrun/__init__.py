"""`torchrun --rdzv-backend=understudy`: stock torchrun as a member of a job, in place of the launcher.

understudy_launcher.supervise makes the decisions, as in the launcher. Here:

    agent.py, rendezvous_calls.py  translate between the supervisor and the calls of torchrun's agent (pure)
    hand_over.py, wait.py          mode Auto: torchrun passes its job to the launcher, and waits
    session.py                     the thread with the socket, timers and signals, and the calls that wait for answers
    workers.py, steps.py           torchrun's workers: found, watched, signaled, never reaped
    handler.py, stores.py          torch's interfaces; only these and hand_over.py import torch

torch finds `handlers` by the entry point group torchrun.handlers whenever a process imports
torch.distributed.elastic.rendezvous, also in a worker. So this module imports nothing of Understudy or torch. The
shared folder of a pod has this entry point (package.py), and so has the wheel: with both, torch calls `handlers` twice.

torchrun's agent creates RendezvousParameters before anything else. There this module decides:

- A torchrun of the pod's command, mode Auto, passes its job to the launcher (hand_over.py).
- A torchrun of the pod's command, mode Torchrun, uses this backend. With another one it exits with 64.
- A worker of the launcher exits with 64, because its own workers would be no part of the job.
- Any other process, such as a worker of torchrun, is not affected.

The entry script launch-torchrun also rejects other backends, if it can read the command: not inside a shell.
"""

import json
import os
import sys
from typing import Any, Callable, NoReturn

BACKEND = "understudy"
USAGE = 64
#: As in understudy_protocol.pod, which is not imported here.
_ENV_TORCHRUN, _ENV_ROUND, _ENV_SOCKET = "UNDERSTUDY_TORCHRUN", "UNDERSTUDY_ROUND", "UNDERSTUDY_TORCHRUN_SOCKET"
_ERROR_FILE = "TORCHELASTIC_ERROR_FILE"
#: Attribute of torch's class whose calls this module watches.
_WATCHED = "understudy_watches"


def handlers() -> Callable[[Any], Any]:
    """torch registers the result under the entry point's name: parameters -> handler."""
    _watch_agents()
    return _create


def _watch_agents() -> None:
    api = sys.modules.get("torch.distributed.elastic.rendezvous.api")
    parameters: Any = getattr(api, "RendezvousParameters", None)
    if parameters is None:
        return  # another version of torch: the job's status shows that this pod does not join
    if hasattr(parameters, _WATCHED):
        return
    setattr(parameters, _WATCHED, True)
    initialize = parameters.__init__

    def initialize_ours(self: Any, backend: str, *others: Any, **named: Any) -> None:
        env = os.environ
        if env.get(_ENV_ROUND):
            if not env.get(_ENV_TORCHRUN):
                _refuse_in_worker()
        elif env.get(_ENV_SOCKET):
            _hand_over(sys._getframe(1).f_locals)
            backend = BACKEND
        elif env.get(_ENV_TORCHRUN) and backend != BACKEND:
            _refuse(
                f"understudy torchrun: this torchrun uses the rendezvous backend {backend!r} (--standalone and "
                "--rdzv-backend set it), so it would never join the job. Remove the option, or use launcher.mode Auto."
            )
        initialize(self, backend, *others, **named)

    parameters.__init__ = initialize_ours


def _hand_over(agent: "dict[str, Any]") -> None:
    """agent: the local variables of torch.distributed.launcher.api.launch_agent, which has the result of the parser."""
    if not {"config", "entrypoint", "args"} <= agent.keys():
        _refuse(
            "understudy torchrun: this program starts an elastic agent without torch.distributed.run, so the launcher "
            "cannot run its workers: set launcher.mode to Wrap, or use torchrun."
        )
    from understudy_torchrun.hand_over import hand_over

    hand_over(agent["config"], agent["entrypoint"], agent["args"])


def _refuse_in_worker() -> NoReturn:
    text = (
        f"worker of rank {os.environ.get('RANK')} starts a rendezvous of its own (torchrun or torch.distributed.run), "
        "so its processes would train apart from the job. Call torchrun in the container's command, with launcher.mode "
        "Auto. If a program calls it, such as llamafactory-cli, set launcher.mode to Torchrun, which runs the command "
        "once in each pod. If this torchrun is no part of the job, start it with `env -u UNDERSTUDY_ROUND`."
    )
    try:
        with open(os.environ.get(_ERROR_FILE, ""), "x", encoding="utf-8") as file:
            json.dump({"message": {"message": text}}, file)
    except OSError:
        pass  # no variable, or a file that torch's @record has written
    _refuse(f"understudy: {text}")


def _refuse(text: str) -> NoReturn:
    sys.stderr.write(f"{text}\n")
    raise SystemExit(USAGE)


def _create(parameters: Any) -> Any:
    from understudy_torchrun.handler import UnderstudyRendezvous

    return UnderstudyRendezvous(parameters)
