"""The file that `go build` writes for each of the cluster's programs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cluster.binaries import CLUSTER_PROGRAMS, executable_name

SOURCE = Path("/checkout/tests/cluster/dns")


@pytest.mark.parametrize(
    ("package", "name"),
    [
        ("k8s.io/kubernetes/cmd/kubelet", "kubelet"),
        ("go.etcd.io/etcd/server/v3", "server"),
        ("github.com/containerd/containerd/v2/cmd/ctr", "ctr"),
        ("./pause", "pause"),
        (".", "dns"),
    ],
)
def test_an_executable_has_the_name_of_its_package(package: str, name: str) -> None:
    assert executable_name(package, SOURCE) == name


def test_each_program_of_one_build_has_a_file_of_its_own() -> None:
    names = [executable_name(package, SOURCE) for package in CLUSTER_PROGRAMS.values()]
    assert len(set(names)) == len(names)
