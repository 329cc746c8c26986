"""Which of the operator's shards owns a namespace, and which Lease a shard has.

Rules:
- A layout is the number of shards, and the list of namespaces whose shard an administrator has chosen. In each layout,
  each namespace has exactly one shard. If it is not in the list, the shard is the first eight bytes of the SHA-256 of
  its name, modulo the number of shards. So no list has to be maintained, and all replicas of all versions agree.
- A pool and the jobs that claim its spares are in one namespace, so they have one owner.
- Objects without a namespace (nodes) belong to all shards. Shards only read them.
- The name of a Lease contains the number of shards, and an annotation has the list. So replicas can see whether a shard
  of another layout leads (other_layouts.py). A single shard has the Lease without a suffix.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

#: Each shard watches the whole cluster, so more shards cost the API server more. The chart's Role names all Leases.
MOST_SHARDS = 8
#: On a Lease: the list of the shard that has written it. Without a list, there is no annotation.
LISTED_ANNOTATION = "understudy.dev/shard-namespaces"


@dataclass(frozen=True)
class Shard:
    """The shard `index` of the layout with `count` shards. listed: the namespaces with a chosen shard, as
    `team-a=0,team-b=1`.
    """

    index: int = 0
    count: int = 1
    listed: str = ""

    def owns(self, namespace: str) -> bool:
        if not namespace or self.count == 1:
            return True
        chosen = self._chosen.get(namespace)
        return (shard_of(namespace, self.count) if chosen is None else chosen) == self.index

    def watched(self, namespaces: tuple[str, ...]) -> tuple[str, ...]:
        """Of the operator's watched namespaces, those of this shard. Empty: all, as in `namespaces`. So a shard that
        owns none of them watches one, and ignores its objects.
        """
        return tuple(filter(self.owns, namespaces)) or namespaces[:1]

    def lease_name(self, base: str) -> str:
        """base: the name of the Lease of a single shard."""
        return base if self.count == 1 else f"{base}-{self.index}-of-{self.count}"

    def has_lease_name(self, base: str, lease: str) -> bool:
        """Whether that is the name of the Lease of a shard of a layout with the same number of shards."""
        return lease in {Shard(index, self.count).lease_name(base) for index in range(self.count)}

    def is_of_other_layout(self, base: str, lease: str, listed: str) -> bool:
        """Whether the Lease of that name and list is that of a shard of another layout."""
        match = re.fullmatch(rf"{re.escape(base)}(?:-[0-9]+-of-([0-9]+))?", lease)
        return match is not None and (int(match[1] or 1), listed) != (self.count, self.listed)

    @cached_property
    def _chosen(self) -> Mapping[str, int]:
        pairs = (entry.split("=") for entry in self.listed.split(",") if entry)
        return {namespace: int(index) for namespace, index in pairs}


#: The only shard of its layout.
SINGLE_SHARD = Shard()


def shard_of(namespace: str, count: int) -> int:
    """The index of the shard that owns the namespace."""
    return int.from_bytes(sha256(namespace.encode()).digest()[:8], "big") % count
