"""What a weight update needs of an inference engine and of a trainer: write these, and it works with yours.

Rules for an Engine: each method returns when the thing is done, and raises when it is not. `leave_group`, `resume_kv`,
`flush_cache` and `resume_generation` undo: they may be called twice, and where what they undo never happened or only
half. A method that is cancelled lets go soon. None may block the event loop (`blocking.in_thread` helps).
`engines/sglang.py` and `engines/vllm.py` are two of them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Optional, Protocol

from understudy_rollout.weights import Fence, Former, Group, Held, Weights


@dataclass(frozen=True)
class Tensor:
    """What is transferred. dtype: as torch calls it, without `torch.`: bfloat16."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Engine(Protocol):
    """One inference server (a replica), however many ranks it has."""

    async def stop_generation(self) -> None:
        """Abort what runs, and take up nothing new until resume_generation."""

    async def release_kv(self) -> None:
        """Give the KV cache's memory back. An engine that cannot, keeps it."""

    async def join_group(self, group: Group, first_rank: int) -> None:
        """Join with all ranks: first_rank is the lowest one's."""

    async def receive(self, group: Group, tensors: Sequence[Tensor]) -> None:
        """Take these from rank 0, and put them into the model. The trainer sends them at the same time."""

    async def load(self, path: str) -> None:
        """Take the weights from a folder that the server can read, in place of join_group and receive."""

    async def finish(self, version: str) -> None:
        """All tensors are there: process them as the model needs it, and answer under this version."""

    async def leave_group(self, group: Group) -> None:
        """Also of a former update, whose trainer may still be there: afterwards nothing of that group is written."""

    async def resume_kv(self) -> None: ...

    async def flush_cache(self) -> None:
        """Forget all prefixes: they were computed with the old weights."""

    async def resume_generation(self) -> None: ...


class Trainer(Protocol):
    """The sending side: rank 0 of the group."""

    async def open_group(self, world_size: int) -> Group:
        """Say where the next group meets."""

    async def join_group(self, group: Group) -> None: ...

    async def send(self, group: Group, tensors: Sequence[Tensor]) -> None: ...

    async def leave_group(self, group: Optional[Group]) -> None:
        """Also of a group that never came to be, or whose send hangs: then it has to end that. None: open_group was
        called and has not returned one, so what it has opened is to be closed."""


class Admission(Protocol):
    """Who lets requests through to one replica, and has to know of updates: the gateway, or a router of yours."""

    async def close(self, update: str, version: str, fence: Fence) -> Optional[Former]:
        """Admit nothing more. When this returns, no request is under way whose answer could mix weights, and no call
        of an older update. Returns what an admission knows that may be older than this trainer."""

    async def known(self) -> Optional[Held]:
        """What it knows of the weights, between updates. None: no more than the trainer."""

    async def join(self, update: str, group: Group) -> None:
        """The replica is about to join this group. Raises if the update does not run any more, as confirm does."""

    async def confirm(self, update: str) -> None:
        """All is transferred. Raises if a newer update has taken over."""

    async def open(self, update: str) -> None:
        """All of the update is there: admit, under its version."""

    async def abandon(self, update: str, touched: bool, reason: str) -> None:
        """The update has failed. Untouched weights are those from before, which are admitted again if they were."""


class NoAdmission:
    """For replicas that nobody asks while they are updated."""

    async def close(self, update: str, version: str, fence: Fence) -> Optional[Former]:
        return None

    async def known(self) -> Optional[Held]:
        return None

    async def join(self, update: str, group: Group) -> None: ...

    async def confirm(self, update: str) -> None: ...

    async def open(self, update: str) -> None: ...

    async def abandon(self, update: str, touched: bool, reason: str) -> None: ...


def missing_calls(side: object, calls: Iterable[str]) -> str:
    """Those of these calls that the side lacks, as a list in words."""
    return ", ".join(call for call in calls if not callable(getattr(side, call, None)))


@dataclass(eq=False)
class Replica:
    """One rollout server, as the trainer sees it, for as long as the trainer lives."""

    name: str
    engine: Engine
    ranks: int = 1  # how many ranks of the group are its: tensor parallel × pipeline parallel
    admission: Admission = field(default_factory=NoAdmission)
    weights: Weights = field(default_factory=Weights)
    updated_by: Optional[str] = None  # the id of the update that runs
    group: Optional[Group] = None  # that it was to join, and has not left; also that of a trainer before this one

    async def refresh(self) -> None:
        """Ask the gateway what the server holds. The server, or this trainer, may have been restarted meanwhile."""
        known = await self.admission.known()
        if known is not None and self.updated_by is None:
            self.weights.found(known)

    async def leave_group(self) -> None:
        """Whichever it is in."""
        if self.group is not None:
            await self.engine.leave_group(self.group)
            self.group = None
