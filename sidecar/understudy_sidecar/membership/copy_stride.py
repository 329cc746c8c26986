"""Which saves of a round are copied to other pods: the same ones in all ranks, although some links are slower. Pure.

Rules: a pod needs a stride: the smallest power of two that is at least twice the number of saves during a copy of all
its ranks, or 1 if such a copy ends before the next save. It reports its need, and the coordinator puts the largest one
into the plans of all pods (copies.py). All pods copy the saves 1, 1 + stride, 1 + 2 x stride, … of the round. The saves
of a larger stride are among those of a smaller one, so copies from before a change count. The need is that of the
second slowest of the last COPIES copies: one slow copy, such as one at the loss of a pod, changes nothing, because the
stride grows at the second one, and falls much later. A pod that has missed so many saves that its process cannot keep
up with very short steps copies any save.
"""

from collections import deque
from collections.abc import Mapping

MAX_STRIDE = 1 << 16
COPIES = 16
#: Without a copy for so many strides, the next save is due.
MISSED_STRIDES = 4


def valid_stride(stride: int) -> int:
    """The stride for a member that reports this one: a power of two within the limit. So a member that reports ever
    larger ones makes the coordinator send new plans at most 16 times before the stride falls again.
    """
    return 1 << (min(max(1, stride), MAX_STRIDE) - 1).bit_length()


class StrideNeed:
    def __init__(self) -> None:
        self._recent: deque[int] = deque(maxlen=COPIES)

    def on_copied(self, saves: int) -> None:
        """saves: that have ended while the copies of all ranks were made."""
        self._recent.append(min(MAX_STRIDE, 1 << (2 * saves - 1).bit_length()) if saves > 0 else 1)

    @property
    def stride(self) -> int | None:
        """None before the first copy."""
        return sorted((1, *self._recent))[-2] if self._recent else None


def is_due(serial: int, stride: int, sent: int) -> bool:
    """Whether the save with this number is copied. sent: the number of the last one of the round that was; 0: none."""
    return (serial - 1) % stride == 0 or serial - sent > MISSED_STRIDES * stride


def all_have_saved(due: Mapping[int, int], sent: Mapping[int, int], nproc: int) -> bool:
    """Whether all ranks of a pod have saved the oldest save that is due in one of them, so that its copies can begin: a
    copy counts if all ranks of the pod have it. due: the numbers of the saves, by local rank. sent: of those that were
    sent last.
    """
    oldest = min(due.values(), default=None)
    return oldest is not None and all(max(due.get(x, 0), sent.get(x, 0)) >= oldest for x in range(nproc))
