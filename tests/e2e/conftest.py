"""The e2e tests' cluster, and what a failure leaves behind: the logs of every pod and component in one folder."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster import Cluster
from tests.e2e.prepare import prepare
from tests.e2e.training import CHECKOUT

NAMESPACE = "understudy-e2e"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--logs", default="build/e2e-logs", help="where a failure leaves the logs of pods and components")


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster with Understudy installed. All nodes are up again afterwards."""
    cluster = prepare()
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    yield cluster
    for node in cluster.nodes():
        cluster.restore(node)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()):
        folder = Path(item.config.getoption("--logs"))
        where = Cluster().logs((CHECKOUT / folder) if not folder.is_absolute() else folder)
        report.sections.append(("logs", f"the logs of all pods and components: {where}"))
    return report
