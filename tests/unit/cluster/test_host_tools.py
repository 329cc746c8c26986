"""If Go is missing or too old, the error has the command that installs it."""

from __future__ import annotations

import shutil

import pytest

from tests.cluster import host_tools
from tests.cluster.failures import MissingTool


@pytest.mark.parametrize("seen", ["go1.26.8", "go1.26.10", "go1.27.0", "go2.0"])
def test_a_go_new_enough_is_accepted(monkeypatch, seen):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/go")
    monkeypatch.setattr(host_tools, "run", lambda *_, **__: seen + "\n")
    assert host_tools.ensure_go("1.26.8") == "/go"


@pytest.mark.parametrize("seen", ["go1.26.7", "go1.9.9", "go1.25"])
def test_an_older_go_is_refused(monkeypatch, seen):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: "/go")
    monkeypatch.setattr(host_tools, "run", lambda *_, **__: seen + "\n")
    with pytest.raises(MissingTool, match=r"needs? Go 1\.26\.8.*tar -C /usr/local"):
        host_tools.ensure_go("1.26.8")


def test_a_missing_go_is_reported_with_the_command(monkeypatch):
    monkeypatch.setattr(shutil, "which", lambda *_, **__: None)
    with pytest.raises(MissingTool, match=r"curl -L https://go\.dev/dl/go1\.26\.8\.linux-"):
        host_tools.ensure_go("1.26.8")
