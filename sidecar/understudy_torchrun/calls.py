"""What torchrun's agent asks its rendezvous (events), and what it is answered (effects). Facts only.

Everything else that agent.py hears and asks for is in `understudy_launcher.events`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Union

from understudy_launcher import events as e
from understudy_protocol.launcher import StartWorkers


@dataclass(frozen=True)
class WantsRound:
    """next_rendezvous() was called: no worker of its runs. at: wall-clock time, for what is told of it."""

    at: float


@dataclass(frozen=True)
class PollsMembers:
    """num_nodes_waiting() was called: its workers run, and none of them has failed."""


@dataclass(frozen=True)
class WorkersSucceeded:
    """Its exit barrier was entered: all its workers exited 0. at: wall-clock time."""

    at: float


@dataclass(frozen=True)
class HandlerClosed:
    """It waits for no answer any more: a signal has ended the call."""


@dataclass(frozen=True)
class WorkersSeen:
    """These local ranks' processes are watched from now on."""

    local_ranks: Collection[int]


Call = Union[WantsRound, PollsMembers, WorkersSucceeded, HandlerClosed, WorkersSeen]


@dataclass(frozen=True)
class Begin:
    """The answer to next_rendezvous(): start the workers of this round."""

    start: StartWorkers


@dataclass(frozen=True)
class ContinueTraining:
    """The answer to num_nodes_waiting(): nobody waits."""


@dataclass(frozen=True)
class Interrupt:
    """The answer to num_nodes_waiting(): stop what is left of the workers, and call next_rendezvous()."""


@dataclass(frozen=True)
class LeaveRendezvous:
    """The answer to any call: exit with this code."""

    code: int
    reason: str


@dataclass(frozen=True)
class RestartRendezvous:
    """The answer to the exit barrier, from which no agent comes back: the program replaces itself."""


@dataclass(frozen=True)
class SignalWorkers:
    """To all workers that are watched, each with its group."""

    aim: e.Aim


@dataclass(frozen=True)
class ForwardSignal:
    """The signal that was held back is torchrun's to handle."""


@dataclass(frozen=True)
class ExitNow:
    """End the process, wherever the agent is."""

    code: int
    reason: str


Answer = Union[Begin, ContinueTraining, Interrupt, LeaveRendezvous, RestartRendezvous]
ANSWERS = (Begin, ContinueTraining, Interrupt, LeaveRendezvous, RestartRendezvous)
Effect = Union[e.Effect, Answer, SignalWorkers, ForwardSignal, ExitNow]
