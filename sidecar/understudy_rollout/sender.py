"""The sending side, and the group that it was to join and has not left, kept over updates as Replica keeps its own.

A trainer is an object of the user's, and the same one for all updates: so this is kept beside it.
"""

from typing import Optional

from understudy_rollout.engine import Group, Trainer

_in_group: dict[int, tuple[Trainer, Group]] = {}  # by the trainer's id, which stays its own as long as it is here


class Sender:
    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer

    @property
    def group(self) -> Optional[Group]:
        entry = _in_group.get(id(self.trainer))
        return None if entry is None else entry[1]

    async def open_group(self, world_size: int) -> Group:
        group = await self.trainer.open_group(world_size)
        _in_group[id(self.trainer)] = (self.trainer, group)
        return group

    async def leave_group(self) -> None:
        """Whichever it is in."""
        group = self.group
        if group is not None:
            await self.trainer.leave_group(group)
            _in_group.pop(id(self.trainer), None)
