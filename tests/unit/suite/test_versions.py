"""Nightly runs use the launcher with each Python, and torchrun's tests with each torch, that users may have."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests import all as suites
from tests import pythons
from tests.cluster import torch_install
from tests.cluster.paths import CHECKOUT, Paths


def interpreter(path: Path, describes: str = 'echo "$0"') -> str:
    path.parent.mkdir(parents=True)
    path.write_text(f"#!/bin/sh\n{describes}\n")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without any Python: a home, a cache, and a PATH of its own."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'path'}:/usr/bin-of-no-machine")
    return tmp_path


def test_a_python_is_found_on_path_unless_it_is_a_shim_that_fails(machine: Path) -> None:
    assert pythons.find_python("3.10") is None
    interpreter(machine / "path/python3.10", describes="exit 127")
    assert pythons.find_python("3.10") is None
    pyenv = interpreter(machine / "home/.pyenv/versions/3.10.13/bin/python3.10")
    assert pythons.find_python("3.10") == pyenv
    (machine / "path/python3.10").write_text('#!/bin/sh\necho "$0"\n')
    assert pythons.find_python("3.10") == str(machine / "path/python3.10")


def test_the_interpreter_of_a_shim_on_path_is_found(machine: Path) -> None:
    pyenv = interpreter(machine / "home/.pyenv/versions/3.11.7/bin/python3.11")
    interpreter(machine / "path/python3.11", describes=f"exec {pyenv}")
    assert pythons.find_python("3.11") == pyenv


def test_a_python_that_uv_has_installed_into_the_cache_is_found(machine: Path) -> None:
    installed = interpreter(machine / "cache/pythons/cpython-3.12.9-linux-x86_64-gnu/bin/python3.12")
    assert pythons.find_python("3.12") == installed
    assert pythons.find_python("3.1") is None


def test_the_run_fails_for_a_python_that_is_missing_and_cannot_be_installed(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # given a machine without 3.10 and 3.12, and without a network
    for version in ("3.9", "3.11", "3.13"):
        interpreter(machine / f"home/.pyenv/versions/{version}.1/bin/python{version}")
    requests: list[str] = []
    monkeypatch.setattr(pythons, "install_python", lambda version, folder: requests.append(version))
    ran: list[str] = []

    def reconciles(version: str, python: str) -> bool:
        ran.append(version)
        return True

    monkeypatch.setattr(pythons, "passes", reconciles)
    # when the tests run
    code = pythons.main()
    # then the tests have run with all others, and the run has failed
    assert requests == ["3.10", "3.12"]
    assert ran == ["3.9", "3.11", "3.13"]
    assert code == 1
    assert "make pythons: FAILED: 3.10, 3.12" in capsys.readouterr().out


def test_the_run_fails_for_a_python_with_which_a_test_fails(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pythons, "find_python", lambda version: f"/usr/bin/python{version}")
    monkeypatch.setattr(pythons, "passes", lambda version, python: version != "3.9")
    assert pythons.main() == 1
    assert "make pythons: FAILED: 3.9\n" in capsys.readouterr().out


def test_torch_is_the_local_clusters_unless_a_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = Paths(tmp_path)
    monkeypatch.delenv("UNDERSTUDY_TORCH", raising=False)
    assert torch_install.folder(paths) == tmp_path / "torch-2.13.0"
    monkeypatch.setenv("UNDERSTUDY_TORCH", "2.6.0")
    assert torch_install.folder(paths) == tmp_path / "torch-2.6.0"


def test_every_night_runs_the_oldest_torch_and_python_that_are_supported_and_the_newest() -> None:
    assert {"pythons", "torches", "integration-kubernetes"} <= set(suites.NIGHTLY_TARGETS)
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    torches = re.search(r"^TORCHES := (.*)$", makefile, re.MULTILINE)
    assert torches is not None
    assert torches[1].split() == ["2.6.0", "2.15.0"]
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["optional-dependencies"]["torch"] == ["torch>=2.6"]
    assert pythons.VERSIONS == ("3.9", "3.10", "3.11", "3.12", "3.13")
