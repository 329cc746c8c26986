"""The format of the sidecars' logs: the pods get the settings of the operator and the webhook."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, a_job
from tests.unit.operator.given_warm import a_warm_pool
from tests.unit.webhook.golden import pod
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.warm_spare_pods import warm_spec
from understudy_operator.plan.pool.comparing import difference
from understudy_protocol.logs import ENV_FORMAT


def read_format(manifest: dict[str, Any]) -> list[str]:
    sidecar = manifest["spec"]["initContainers"][0]
    return [variable["value"] for variable in sidecar["env"] if variable["name"] == ENV_FORMAT]


@pytest.mark.parametrize(("log_format", "expected"), [("json", ["json"]), ("text", [])])
def test_a_sidecar_gets_settings_that_are_not_the_default(log_format: str, expected: list[str]):
    job = replace(a_job(), log_format=log_format)
    made = pod_manifest(job, index=0, serial="s", coordinator_address="10.0.0.7:8478", sidecar_image=IMAGE)
    assert read_format(made) == expected


def test_an_injected_sidecar_gets_the_settings():
    assert read_format(inject(pod("job"), IMAGE, "json").pod) == ["json"]
    assert read_format(inject(pod("job"), IMAGE).pod) == []


def test_a_warm_spare_of_a_pool_gets_the_settings():
    pool = a_warm_pool(replicas=1)
    assert read_format({"spec": warm_spec(replace(pool, log_format="json"), IMAGE, "s")}) == ["json"]
    assert read_format({"spec": warm_spec(pool, IMAGE, "s")}) == []


def test_a_job_may_take_a_spare_that_has_another_log_format():
    assert difference(replace(a_job(), log_format="json"), a_warm_pool(replicas=1)) == ""
