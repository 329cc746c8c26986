"""The difference between a pod and the injected pod as a JSON patch (RFC 6902): whole values at the few paths that
injection changes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

_POD = ("metadata/labels", "metadata/annotations", "spec/restartPolicy", "spec/volumes", "spec/initContainers")
_CONTAINER = ("command", "env", "volumeMounts")


def json_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Empty if the pods are equal."""
    return list(_operations(before, after))


def _operations(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for path in _POD:
        parent, _, field = path.partition("/")
        if before[parent].get(field) != after[parent].get(field):
            yield {"op": "add", "path": f"/{path}", "value": after[parent][field]}
    pairs = zip(before["spec"]["containers"], after["spec"]["containers"], strict=True)
    for number, (old, new) in enumerate(pairs):
        for field in _CONTAINER:
            if old.get(field) != new.get(field):
                yield {"op": "add", "path": f"/spec/containers/{number}/{field}", "value": new[field]}
