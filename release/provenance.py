"""How the files of a release were made: an in-toto Statement (v1) with SLSA's provenance (v1). Pure.

It is not signed: the project has no key. Whoever publishes the files signs this document, for example with `cosign
attest-blob`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

STATEMENT = "https://in-toto.io/Statement/v1"
PREDICATE = "https://slsa.dev/provenance/v1"
#: What `make release` does, which a reader finds in the source of that commit.
BUILD_TYPE = "urn:understudy:make-release:v1"
BUILDER = "urn:understudy:local-builder:v1"


@dataclass(frozen=True)
class Source:
    commit: str
    version: str
    chart_version: str


@dataclass(frozen=True)
class Dependency:
    """Of the build: a base image, or a lock file."""

    uri: str
    sha256: str


def statement(
    files: Mapping[str, str], source: Source, dependencies: Sequence[Dependency], started: datetime, finished: datetime
) -> dict[str, Any]:
    """files: SHA-256 by name."""
    commit = {"uri": "git+file:understudy", "digest": {"gitCommit": source.commit}}
    return {
        "_type": STATEMENT,
        "subject": [{"name": name, "digest": {"sha256": digest}} for name, digest in sorted(files.items())],
        "predicateType": PREDICATE,
        "predicate": {
            "buildDefinition": {
                "buildType": BUILD_TYPE,
                "externalParameters": {
                    "command": "make release",
                    "version": source.version,
                    "chartVersion": source.chart_version,
                },
                "internalParameters": {},
                "resolvedDependencies": [
                    commit,
                    *({"uri": x.uri, "digest": {"sha256": x.sha256}} for x in dependencies),
                ],
            },
            "runDetails": {
                "builder": {"id": BUILDER},
                "metadata": {"startedOn": _time(started), "finishedOn": _time(finished)},
            },
        },
    }


def _time(at: datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
