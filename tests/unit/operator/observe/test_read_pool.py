"""A pool as the jobs that name it see it."""

from typing import Any

import pytest

from tests.unit.operator.fake_api import CREATED
from tests.unit.operator.given import KEYRING
from tests.unit.operator.given_pool import SPARE_TEMPLATE
from understudy_operator.observe.read_pool import view_of
from understudy_operator.observe.store import Kind, Store


def desired(spec: dict[str, Any], **metadata: str) -> int:
    store = Store()
    ordinary = {"namespace": "research", "name": "shared", "uid": "pool-uid", "resourceVersion": "1"}
    whole = {**ordinary, "creationTimestamp": CREATED, **metadata}
    store.put(Kind.POOL, {"metadata": whole, "spec": {"template": SPARE_TEMPLATE, **spec}})
    return view_of(store, KEYRING, "research", "shared").desired


@pytest.mark.parametrize("spec", [{"replicas": 3}, {"autoSize": {"minReplicas": 3}}])
def test_a_pool_that_is_being_deleted_creates_no_spare_that_a_job_could_wait_for(spec: dict[str, Any]) -> None:
    assert desired(spec) == 3
    assert desired(spec, deletionTimestamp=CREATED) == 0
