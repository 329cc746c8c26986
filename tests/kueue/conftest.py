"""The real operator and the real Kueue, against a real API server. The tests play scheduler, kubelets and sidecars."""

from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING

import pytest

from tests.integration.conftest import ApiServer, api_server
from tests.integration.operator.conftest import kube_of, kubeconfig, operator
from tests.integration.operator.training import Training
from tests.kueue.build import kueue
from tests.kueue.kueue_manager import manager

if TYPE_CHECKING:
    from tests.integration.operator.kube import Kube
    from tests.integration.operator.process import OperatorProcess

__all__ = ["api_server", "kubeconfig", "operator"]


@pytest.fixture(scope="session")
def kueue_manager(api_server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    built = kueue()
    if not built.folder.exists():
        pytest.fail(f"{built.folder} is not there: make kueue builds Kueue first")
    with manager(built, api_server, tmp_path_factory.mktemp("kueue")):
        yield


@pytest.fixture
async def kube(kueue_manager: None, api_server: ApiServer, operator: "OperatorProcess") -> "AsyncIterator[Kube]":
    async with kube_of(api_server, operator) as kube:
        yield kube


@pytest.fixture
async def training(kube: "Kube") -> AsyncIterator[Training]:
    training = Training(kube)
    yield training
    await training.stop()
