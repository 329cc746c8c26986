"""Lists the NetworkPolicies of this shard's jobs. They have no watch."""

import logging
from collections.abc import Sequence
from typing import Any

from understudy_operator.observe.store import Key, Raw, item_filter, key_of
from understudy_operator.plan.leadership.shard import SINGLE_SHARD, Shard
from understudy_operator.runtime.api import Api, ApiError, in_namespaces, namespace_in
from understudy_protocol import pod as names

GROUP = "/apis/networking.k8s.io/v1"
log = logging.getLogger(__name__)


class PolicyList:
    """namespaces: the watched ones; empty: all. forbidden: those whose last list was forbidden."""

    def __init__(self, api: Api, namespaces: Sequence[str], shard: Shard = SINGLE_SHARD) -> None:
        self._shard = shard
        self._api, self._paths = api, in_namespaces(f"{GROUP}/networkpolicies", namespaces)
        self.forbidden: frozenset[str] = frozenset()

    async def list(self) -> dict[Key, Raw]:
        found, forbidden, select_fields = dict[Key, Raw](), set[str](), item_filter()

        def keep(raw: dict[str, Any]) -> dict[str, Any] | None:
            return select_fields(raw) if self._shard.owns(key_of(raw)[0]) else None

        for path in self._paths:
            try:
                listed = await self._api.list(path, names.LABEL_JOB_UID, keep)
            except ApiError as error:
                if error.status != 403 or not namespace_in(path):
                    raise
                forbidden.add(namespace_in(path))
                continue
            found |= {key_of(raw): raw for raw in listed.items}
        for namespace in forbidden - self.forbidden:
            log.warning("may not list NetworkPolicies in namespace %s: its jobs get none", namespace)
        self.forbidden = frozenset(forbidden)
        return found
