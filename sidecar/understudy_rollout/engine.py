"""The interfaces that an inference engine and a trainer implement for weight updates.

Rules for an Engine: each method returns when its work is done, and raises if it is not. `leave_group`, `resume_kv`,
`flush_cache` and `resume_generation` undo: they may be called twice, and also if the opposite never happened or only
partly. A canceled method must return soon. No method may block the event loop (`blocking.in_thread` helps).
`engines/sglang.py` and `engines/vllm.py` implement it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional, Protocol

from understudy_rollout.weights import Fence, Group, PreviousState, Weights, WeightsStatus


@dataclass(frozen=True)
class Tensor:
    """A tensor to transfer. dtype: as in torch, without `torch.`: bfloat16."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Engine(Protocol):
    """One inference server (a replica), with any number of ranks."""

    async def stop_generation(self) -> None:
        """Abort running requests, and accept no new one until resume_generation."""

    async def release_kv(self) -> None:
        """Free the memory of the KV cache. An engine that cannot do so keeps it."""

    async def join_group(self, group: Group, first_rank: int) -> None:
        """Join with all ranks; first_rank is the lowest of them."""

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        """Receive these tensors from rank 0 and load them into the model. The trainer sends them at the same time."""

    async def load(self, path: str) -> None:
        """Load the weights from a folder that the server can read, in place of join_group and receive."""

    async def finish(self, version: str) -> None:
        """All tensors have arrived: process them as the model requires, and answer under this version."""

    async def leave_group(self, group: Group) -> None:
        """Afterwards the group cannot write to the server. Also for a group of an earlier update whose trainer may
        still run.
        """

    async def resume_kv(self) -> None: ...

    async def flush_cache(self) -> None:
        """Drop all cached prefixes: they were computed with the old weights."""

    async def resume_generation(self) -> None: ...


class Trainer(Protocol):
    """The sending side: rank 0 of the group."""

    async def open_group(self, world_size: int) -> Group:
        """Return the address of the next group."""

    async def join_group(self, group: Group) -> None: ...

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None: ...

    async def leave_group(self, group: Optional[Group]) -> None:
        """Also for a group that was never formed, or whose send hangs: then end that send. None: open_group was called
        and returned no group, so close the resources that it has opened.
        """


class Admission(Protocol):
    """Admits requests to one replica and takes part in updates: the gateway, or a router of yours."""

    async def close(self, update: str, version: str, fence: Fence) -> Optional[PreviousState]:
        """Admit no more requests. On return no request is running whose answer could mix weights, and no call of an
        older update. Return the admission's state from before this update, which may be older than this trainer.
        """

    async def known(self) -> Optional[WeightsStatus]:
        """The state of the weights, between updates. None: the trainer's own state is as good."""

    async def join(self, update: str, group: Group) -> None:
        """The replica is about to join this group. Like confirm, raises if the update no longer runs."""

    async def confirm(self, update: str) -> None:
        """All tensors are transferred. Raises if a newer update has replaced this one."""

    async def open(self, update: str) -> None:
        """The update is complete: admit requests under its version."""

    async def abandon(self, update: str, touched: bool, reason: str) -> None:
        """The update has failed. If the weights are untouched, requests are admitted again as before the update."""


class NoAdmission:
    """For replicas that get no requests during an update."""

    async def close(self, update: str, version: str, fence: Fence) -> Optional[PreviousState]:
        return None

    async def known(self) -> Optional[WeightsStatus]:
        return None

    async def join(self, update: str, group: Group) -> None: ...

    async def confirm(self, update: str) -> None: ...

    async def open(self, update: str) -> None: ...

    async def abandon(self, update: str, touched: bool, reason: str) -> None: ...


def missing_calls(side: object, calls: Iterable[str]) -> str:
    """The calls that the side lacks, as a comma-separated list."""
    return ", ".join(call for call in calls if not callable(getattr(side, call, None)))


@dataclass(eq=False)
class Replica:
    """One rollout server, from the trainer's view, for as long as the trainer lives."""

    name: str
    engine: Engine
    ranks: int = 1  # its ranks in the group: tensor parallel × pipeline parallel
    admission: Admission = field(default_factory=NoAdmission)
    weights: Weights = field(default_factory=Weights)
    updated_by: Optional[str] = None  # the id of the running update
    group: Optional[Group] = None  # the group that it had to join and has not left, also of an earlier trainer

    async def refresh(self) -> None:
        """Read the server's state from the gateway. The server, or this trainer, may have been restarted meanwhile."""
        known = await self.admission.known()
        if known is not None and self.updated_by is None:
            self.weights.found(known)

    async def leave_group(self) -> None:
        """Leave its group, if it is in one."""
        if self.group is not None:
            await self.engine.leave_group(self.group)
            self.group = None
