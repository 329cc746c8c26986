"""The integration tests use the programs of the version of Kubernetes that an environment variable names."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster import MissingTool
from tests.cluster.binaries import kubernetes_version
from tests.cluster.other_kubernetes import module_of, server_binaries, versions
from tests.cluster.paths import Paths


def test_the_local_clusters_programs_are_used_unless_a_version_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = Paths(tmp_path)
    monkeypatch.delenv("UNDERSTUDY_KUBERNETES", raising=False)
    assert server_binaries(paths) == paths.binaries
    monkeypatch.setenv("UNDERSTUDY_KUBERNETES", "1.30")
    assert server_binaries(paths).name.startswith("kubernetes-1.30-")
    assert server_binaries(paths) != module_of(paths, "1.33").target


def test_a_version_without_a_module_is_refused_with_the_existing_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNDERSTUDY_KUBERNETES", "1.31")
    with pytest.raises(MissingTool, match=r"UNDERSTUDY_KUBERNETES=1\.31: there are modules of 1\.30, 1\.33"):
        server_binaries(Paths(tmp_path))


@pytest.mark.parametrize("version", versions())
def test_a_module_pins_a_release_of_its_version_and_builds_the_programs_that_tests_run(
    tmp_path: Path, version: str
) -> None:
    module = module_of(Paths(tmp_path), version)
    assert kubernetes_version(module.source).startswith(f"{version}.")
    assert module.kubernetes == module.source
    assert set(module.missing()) == {"kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl"}
