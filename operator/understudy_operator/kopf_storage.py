"""Nothing is kept in objects by kopf: all its handlers here are of raw events, and none asks what has changed.

Without these two kopf copies the object of each event several times, to find that nobody wants to know: at thousands
of pods that is a third of the operator's time.
"""

from typing import Any

import kopf


class NoDiffs(kopf.DiffBaseStorage):
    def build(self, **_: Any) -> kopf.BodyEssence:
        return kopf.BodyEssence({})

    def fetch(self, **_: Any) -> kopf.BodyEssence | None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler of changes is registered")


class NoProgress(kopf.ProgressStorage):
    def fetch(self, **_: Any) -> kopf.ProgressRecord | None:
        return None

    def store(self, **_: Any) -> None:
        raise AssertionError("no handler of changes is registered")

    def purge(self, **_: Any) -> None:
        """There is nothing."""

    def touch(self, **_: Any) -> None:
        """Nobody waits for it."""

    def clear(self, *, essence: kopf.BodyEssence) -> kopf.BodyEssence:
        return essence
