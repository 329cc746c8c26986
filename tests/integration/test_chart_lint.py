"""helm's lint of the chart."""

import subprocess

import pytest

from tests.cluster.paths import CHECKOUT, Paths

EVERYTHING = "networkPolicies.enabled=true,networkPolicies.jobs.enabled=true,webhook.certificates.mode=CertManager"


@pytest.mark.parametrize(
    "settings",
    [
        "",
        EVERYTHING,
        "dashboard.enabled=true",
        "webhook.enabled=false,crds.enabled=false,rbac.aggregate.enabled=false",
        "masterSecret.name=own",
    ],
)
def test_helm_lint_finds_no_problem(settings: str) -> None:
    helm = Paths.from_environment().binaries / "helm"
    command = [str(helm), "lint", "--strict", str(CHECKOUT / "charts" / "understudy"), "--set", settings]
    result = subprocess.run(command, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr
    assert "[WARNING]" not in result.stdout + result.stderr
