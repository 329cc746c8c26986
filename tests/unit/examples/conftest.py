"""These tests do not need their writes on the disk."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_disk_flushes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "fsync", lambda _handle: None)
