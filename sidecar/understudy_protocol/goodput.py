"""The parts of a job's time, for the operator, which accounts for it, and for readers of its status.

Each second of a job is in one part, so the sum of all parts is the wall time. Status has the seconds until `since`, and
the part that has run since then: so a job that trains causes no write. A reader adds the rest (`parts_at`).
"""

from collections.abc import Mapping
from enum import Enum
from typing import Optional


class Part(Enum):
    """The names in the API are in camel case: productive, repeated, …"""

    PRODUCTIVE = "Productive"  # steps were made for the first time
    REPEATED = "Repeated"  # steps were made again, after a restore from an older checkpoint or snapshot
    DETECTION = "Detection"  # from the last step before a fault until the fault was detected
    RESTART = "Restart"  # from there until the next step
    CAPACITY = "Capacity"  # as before, but a rank was vacant, and no pod could take it
    STARTING = "Starting"  # before the first step of the job, or after a suspension
    SUSPENDED = "Suspended"  # or the job waited for quota in a queue
    ENDING = "Ending"  # after the last step of the job
    WITHOUT_STEPS = "WithoutSteps"  # all workers run, and the script has never reported a step
    UNKNOWN = "Unknown"  # no operator observed the job, and the coordinator of that time was lost

    @property
    def field(self) -> str:
        """The name of its seconds in status."""
        return self.value[0].lower() + self.value[1:]


#: Only readers use it: the time since the newest step in status. The next step shows which part this time belongs to.
SINCE_LAST_STEP = "sinceLastStep"
FIELDS = (*(part.field for part in Part), SINCE_LAST_STEP)
STEPPING = (Part.PRODUCTIVE, Part.REPEATED)
#: Of a fault.
LOST = (Part.REPEATED, Part.DETECTION, Part.RESTART, Part.CAPACITY)


def parts_at(
    seconds: Mapping[str, float], part: Optional[Part], since: float, stepped_at: Optional[float], now: float
) -> dict[str, float]:
    """The seconds of all parts until `now`, by field.

    seconds: until `since`, by field. part: since then; None: the job has ended. stepped_at: the newest step in status.
    """
    found = {field: seconds.get(field, 0.0) for field in FIELDS}
    if part is None:
        return found
    now = max(now, since)
    until = now
    if part in STEPPING:
        until = since if stepped_at is None else min(max(since, stepped_at), now)
    found[part.field] += until - since
    found[SINCE_LAST_STEP] += now - until
    return found


def ettr(parts: Mapping[str, float]) -> Optional[float]:
    """The effective training time ratio: productive time, of the wall time. None if the script has reported no step."""
    wall_s = sum(parts.values())
    has_stepped = any(parts[part.field] for part in STEPPING)
    return parts[Part.PRODUCTIVE.field] / wall_s if wall_s > 0 and has_stepped else None
