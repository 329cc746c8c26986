"""A release's provenance names every file, the commit, and the inputs of the build."""

from datetime import UTC, datetime

from release.provenance import Dependency, Source, statement

STARTED, FINISHED = datetime(2026, 11, 23, 12, 0, tzinfo=UTC), datetime(2026, 11, 23, 12, 5, 6, tzinfo=UTC)


def test_a_statement_is_in_totos_with_the_provenance_of_slsa() -> None:
    source = Source("c" * 40, "0.1.0", "0.2.0")
    base = Dependency("oci:localhost/understudy-base:abc", "b" * 64)
    assert statement({"b.whl": "2" * 64, "a.tar": "1" * 64}, source, [base], STARTED, FINISHED) == {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [
            {"name": "a.tar", "digest": {"sha256": "1" * 64}},
            {"name": "b.whl", "digest": {"sha256": "2" * 64}},
        ],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:understudy:make-release:v1",
                "externalParameters": {"command": "make release", "version": "0.1.0", "chartVersion": "0.2.0"},
                "internalParameters": {},
                "resolvedDependencies": [
                    {"uri": "git+file:understudy", "digest": {"gitCommit": "c" * 40}},
                    {"uri": "oci:localhost/understudy-base:abc", "digest": {"sha256": "b" * 64}},
                ],
            },
            "runDetails": {
                "builder": {"id": "urn:understudy:local-builder:v1"},
                "metadata": {"startedOn": "2026-11-23T12:00:00Z", "finishedOn": "2026-11-23T12:05:06Z"},
            },
        },
    }
