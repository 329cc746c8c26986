"""The sending side in an update, and the groups that it could not leave: the next update with that trainer has it leave
them, as a Replica remembers its own.

A trainer is an object of the user's, so what it has not left is kept beside it. It may be in several updates at once.
"""

from typing import Optional

from understudy_rollout.engine import Trainer
from understudy_rollout.weights import Group

_not_left: dict[int, tuple[Trainer, list[Group]]] = {}  # by the trainer's id, its own as long as it is held here


class Sender:
    """group: of this update, that it was to join, and has not left."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.group: Optional[Group] = None

    async def open_group(self, world_size: int) -> None:
        self.group = await self.trainer.open_group(world_size)

    async def leave_group(self) -> None:
        if self.group is not None:
            await self.trainer.leave_group(self.group)
            self.group = None

    def has_former_groups(self) -> bool:
        return id(self.trainer) in _not_left

    async def leave_former_groups(self) -> None:
        _, groups = _not_left.pop(id(self.trainer), (self.trainer, []))  # so no other update leaves them as well
        try:
            while groups:
                await self.trainer.leave_group(groups[0])
                del groups[0]
        finally:
            self._remember(groups)

    def end(self) -> None:
        """Of the update."""
        if self.group is not None:
            self._remember([self.group])

    def _remember(self, groups: list[Group]) -> None:
        if groups:
            _not_left.setdefault(id(self.trainer), (self.trainer, []))[1].extend(groups)
