"""The files of the checkout that each image contains."""

from __future__ import annotations

from tests.cluster.dockerfile import Dockerfile
from tests.cluster.paths import CHECKOUT

TEXT = """
# COPY comment /nowhere
ARG BASE=python
ARG PIP_CERT
FROM ${BASE} AS build
COPY requirements/a.lock /build/
RUN one && \\
    # in between
    two
COPY --chown=1:1 src/a src/b \\
     /app/
FROM ${BASE} AS first
COPY --from=build /app /app
FROM ${BASE} AS second
COPY other /other
"""


def test_a_target_has_its_own_sources_and_those_of_its_stages():
    parsed = Dockerfile.parse(TEXT)
    assert parsed.sources_of("first") == ["requirements/a.lock", "src/a", "src/b"]
    assert parsed.sources_of("second") == ["other"]


def test_the_text_of_a_target_is_that_of_its_stages_and_the_preamble():
    text = Dockerfile.parse(TEXT).text_of("second")
    assert "COPY other /other" in text
    assert "ARG BASE=python" in text
    assert "requirements" not in text


def test_arguments_are_found():
    assert Dockerfile.parse(TEXT).arguments() == {"BASE", "PIP_CERT"}


def test_the_projects_targets_copy_only_existing_files():
    parsed = Dockerfile.parse((CHECKOUT / "Dockerfile").read_text())
    for target in ("operator", "sidecar"):
        sources = parsed.sources_of(target)
        assert sources
        assert all((CHECKOUT / source).exists() for source in sources)
