"""The sending side of an update, and the groups that it could not leave: the next update with that trainer leaves them.

A trainer is an object of the user, so its open groups are stored beside it. It may take part in several updates at
once. If open_group failed after an effect, the group is left too, as None.
"""

from typing import Optional

from understudy_rollout.engine import Trainer
from understudy_rollout.weights import Group

_not_left: dict[
    int, tuple[Trainer, list[Optional[Group]]]
] = {}  # by the id of the trainer, which the entry keeps alive


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

    def has_previous_groups(self) -> bool:
        return id(self.trainer) in _not_left

    async def leave_previous_groups(self) -> None:
        _, groups = _not_left.pop(id(self.trainer), (self.trainer, []))  # no other update must leave them too
        try:
            while groups:
                await self.trainer.leave_group(groups[0])
                del groups[0]
        finally:
            self._remember(groups)

    def end(self) -> None:
        """Called at the end of the update."""
        if self.is_open:
            self._remember([self.group])

    def _remember(self, groups: list[Optional[Group]]) -> None:
        if groups:
            _not_left.setdefault(id(self.trainer), (self.trainer, []))[1].extend(groups)
