"""The content of the dashboard: the objects of a cluster, one Fleet at each change."""

import time
from collections.abc import Iterator, Sequence

from understudy_cli.api import Api
from understudy_cli.facts import Fleet
from understudy_cli.following import Followed
from understudy_cli.namespace_objects import EVENTS, NODES, PLURALS, PODS, POOLS, RECOVERIES, Cluster

#: At most one Fleet in this time.
FRAME_S, IDLE_S = 0.2, 1.0
_UNREADABLE = {
    RECOVERIES: "this account may not watch recoveries: a job has the newest ten faults of its status",
    EVENTS: "this account may not watch events: the history of a job has faults and conditions only",
    NODES: "the state of the nodes is not known: this account may not list and watch nodes",
}


def cluster_fleets(api: Api, namespaces: Sequence[str]) -> Iterator[Fleet]:
    """The objects of these namespaces, whenever something has changed; ("",): of all. Raises CommandFailed.

    Each kind has one watch for each namespace, however many browsers look.
    """
    clusters = [Cluster(api, namespace) for namespace in namespaces]
    collections = [collection for cluster in clusters for collection in cluster.everything()]
    collections += Cluster(api, "").every_node()
    known = {collection.name for collection in collections}
    unreadable = tuple(why for name, why in _UNREADABLE.items() if name not in known)
    followed = Followed(api, tuple(collections))
    seen: Fleet | None = None
    while True:
        has_news = followed.take(IDLE_S)
        lost = tuple(f"{name} are not up to date: {why}" for name, why in sorted(followed.disconnected.items()))
        warnings = lost + unreadable
        if not has_news and seen is not None and seen.warnings == warnings:
            continue
        seen = _fleet(followed, warnings, knows_nodes=NODES in known)
        yield seen
        time.sleep(FRAME_S)


def _fleet(followed: Followed, warnings: tuple[str, ...], *, knows_nodes: bool) -> Fleet:
    return Fleet(
        jobs=tuple(job for plural in PLURALS.values() for job in followed.objects(plural)),
        pods=followed.objects(PODS),
        recoveries=followed.objects(RECOVERIES),
        pools=followed.objects(POOLS),
        events=followed.objects(EVENTS),
        nodes=followed.objects(NODES) if knows_nodes else None,
        is_complete=followed.is_complete,
        warnings=warnings,
    )
