"""The calls of torchrun's agent to its rendezvous (events), and the answers (effects). Data only.

The other events and effects of agent.py are in `understudy_launcher.events`.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Union

from understudy_launcher import events as e
from understudy_protocol.launcher import StartWorkers


@dataclass(frozen=True)
class WantsRound:
    """next_rendezvous() was called: none of the agent's workers runs. at: wall-clock time, for messages."""

    at: float


@dataclass(frozen=True)
class PollsMembers:
    """num_nodes_waiting() was called: the agent's workers run, and none of them has failed."""


@dataclass(frozen=True)
class WorkersSucceeded:
    """The agent has entered its exit barrier: all its workers exited 0. at: wall-clock time."""

    at: float


@dataclass(frozen=True)
class HandlerClosed:
    """The agent no longer waits for an answer: a signal has ended the call."""


@dataclass(frozen=True)
class WorkersSeen:
    """The processes of these local ranks are watched from now on."""

    local_ranks: Collection[int]


Call = Union[WantsRound, PollsMembers, WorkersSucceeded, HandlerClosed, WorkersSeen]


@dataclass(frozen=True)
class BeginRound:
    """The answer to next_rendezvous(): start the workers of this round."""

    start: StartWorkers


@dataclass(frozen=True)
class ContinueTraining:
    """The answer to num_nodes_waiting(): 0."""


@dataclass(frozen=True)
class Interrupt:
    """The answer to num_nodes_waiting(): stop the remaining workers, and call next_rendezvous()."""


@dataclass(frozen=True)
class LeaveRendezvous:
    """The answer to any call: exit with this code."""

    code: int
    reason: str


@dataclass(frozen=True)
class RestartRendezvous:
    """The answer to the exit barrier, from which the agent cannot return: torchrun replaces itself by exec."""


@dataclass(frozen=True)
class SignalWorkers:
    """Signal all watched workers, each with its group."""

    aim: e.Aim


@dataclass(frozen=True)
class ForwardSignal:
    """Let torchrun's own handler handle the signal that was held back."""


@dataclass(frozen=True)
class ExitNow:
    """End the process, whatever the agent does."""

    code: int
    reason: str


Answer = Union[BeginRound, ContinueTraining, Interrupt, LeaveRendezvous, RestartRendezvous]
ANSWERS = (BeginRound, ContinueTraining, Interrupt, LeaveRendezvous, RestartRendezvous)
Effect = Union[e.Effect, Answer, SignalWorkers, ForwardSignal, ExitNow]
