"""The cluster of the end-to-end tests, and the logs of a failed test."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling  # type: ignore[import-untyped]

from tests.cluster import Cluster, Power
from tests.e2e.injected import jobset_controller
from tests.e2e.lanes import NAMESPACE, LaneCluster, create_namespace, unit_of
from tests.e2e.plain import PlainJob
from tests.e2e.prepare import prepare_lanes
from tests.e2e.training import CHECKOUT


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--logs", default="build/e2e-logs", help="where a failure leaves the logs of pods and components")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "alone: stops the operator or replaces it, so nothing runs beside it")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Prepare the cluster once, before pytest-xdist starts a worker for each lane."""
    if not hasattr(session.config, "workerinput") and not session.config.getoption("collectonly"):
        prepare_lanes()


class LaneScheduling(LoadScopeScheduling):  # type: ignore[misc]  # pytest-xdist has no types
    """Gives a lane that has finished one unit the next one; the units with the most tests first."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LaneScheduling:
    return LaneScheduling(config, log)


@pytest.fixture(scope="session")
def cluster() -> Iterator[Cluster]:
    """The running cluster with Understudy installed, as this lane sees it. All of its nodes run again afterwards."""
    cluster = LaneCluster()
    create_namespace(cluster, NAMESPACE)
    yield cluster
    for node in cluster.nodes():
        cluster.restore(node)


@pytest.fixture(autouse=True)
def restored_nodes(cluster: Cluster) -> Iterator[None]:
    """Repair the nodes if a test fails during a fault, so that the next tests have no broken node."""
    yield
    for node in cluster.nodes():
        if cluster.power(node) is not Power.ON:
            cluster.restore(node)


@pytest.fixture
def make_job(cluster: Cluster) -> Iterator[Callable[..., PlainJob]]:
    """Describes a job. The test applies it, and it is deleted after the test; keyword arguments are PlainJob's."""
    made: list[PlainJob] = []

    def make(name: str, **changes: Any) -> PlainJob:
        made.append(PlainJob(cluster, NAMESPACE, name, **changes))
        return made[-1]

    yield make
    for job in made:
        job.discard()


@pytest.fixture(scope="session")
def jobsets(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """JobSet's own controller; lanes.unit_of keeps the tests that use it in one lane."""
    with jobset_controller(cluster, tmp_path_factory.mktemp("jobset")):
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[Any]) -> Any:
    report = yield
    if report.failed and "cluster" in getattr(item, "fixturenames", ()):
        folder = CHECKOUT / item.config.getoption("--logs") / f"{Path(item.fspath).stem}.{item.name}".replace("/", "-")
        report.sections.append(("logs", f"the logs of all pods and components: {Cluster().logs(folder)}"))
    return report
