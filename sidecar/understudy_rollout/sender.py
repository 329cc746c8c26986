"""The sending side in an update, and the groups that it could not leave: the next update with that trainer has it leave
them, as a Replica remembers its own.

A trainer is an object of the user's, so what it has not left is kept beside it. It may be in several updates at once.
A group that was opened by halves, because open_group failed after an effect, is left as well: as None.
"""

from typing import Optional

from understudy_rollout.engine import Trainer
from understudy_rollout.weights import Group

_not_left: dict[int, tuple[Trainer, list[Optional[Group]]]] = {}  # by the trainer's id, its own as long as it is here


class Sender:
    """group: of this update. is_open: open_group was called, and the group was not left since."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.group: Optional[Group] = None
        self.is_open = False

    async def open_group(self, world_size: int) -> None:
        self.is_open = True
        self.group = await self.trainer.open_group(world_size)

    async def leave_group(self) -> None:
        if self.is_open:
            await self.trainer.leave_group(self.group)
            self.group, self.is_open = None, False

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
        if self.is_open:
            self._remember([self.group])

    def _remember(self, groups: list[Optional[Group]]) -> None:
        if groups:
            _not_left.setdefault(id(self.trainer), (self.trainer, []))[1].extend(groups)
