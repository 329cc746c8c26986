"""Counts the manifests that are in memory at once."""

import weakref
from collections.abc import Mapping
from typing import Any


class _Manifest(dict[str, Any]):
    """A dict that a weak set can contain."""

    __hash__ = object.__hash__  # type: ignore[assignment]
    __eq__ = object.__eq__


class CountedManifests:
    """most: the largest number so far."""

    def __init__(self) -> None:
        self._present: weakref.WeakSet[_Manifest] = weakref.WeakSet()
        self.most = 0

    def made(self, manifest: Mapping[str, Any]) -> Mapping[str, Any]:
        """A copy, which is counted while it is in use."""
        counted = _Manifest(manifest)
        self._present.add(counted)
        self.most = max(self.most, len(self._present))
        return counted
