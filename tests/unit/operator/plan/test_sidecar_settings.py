"""The installation's settings for sidecars and gateways: all kinds of pods get them."""

from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import IMAGE, a_job
from tests.unit.operator.given_warm import a_warm_pool
from tests.unit.operator.plan.manifests.test_gateways import ROLLOUT, job, pod_of
from tests.unit.webhook.golden import pod
from understudy_operator.plan.facts.sidecar_settings import SidecarSettings, read_sidecar_settings
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.warm_spare_pods import warm_spec
from understudy_operator.plan.pool.comparing import difference
from understudy_protocol.logs import ENV_FORMAT

JSON = SidecarSettings(log_format="json")
RUN_AS = "UNDERSTUDY_SIDECAR_RUN_AS"
Manifest = dict[str, Any]


def of_job(settings: SidecarSettings) -> Manifest:
    job = replace(a_job(), sidecar_settings=settings)
    return pod_manifest(job, index=0, serial="s", facts="facts", sidecar_image=IMAGE)


def injected_pod(settings: SidecarSettings) -> Manifest:
    return inject(pod("job"), IMAGE, settings).pod


def warm_spare(settings: SidecarSettings) -> Manifest:
    return {"spec": warm_spec(replace(a_warm_pool(replicas=1), sidecar_settings=settings), IMAGE, "s")}


def rollout_pod(settings: SidecarSettings) -> Manifest:
    return {"spec": pod_of(ROLLOUT, replace(job(), sidecar_settings=settings))}


ALL_KINDS = pytest.mark.parametrize("made", [of_job, injected_pod, warm_spare, rollout_pod])


def own_container(manifest: Manifest) -> Manifest:
    container: Manifest = manifest["spec"]["initContainers"][0]
    return container


def read_format(manifest: Manifest) -> list[str]:
    return [variable["value"] for variable in own_container(manifest)["env"] if variable["name"] == ENV_FORMAT]


@pytest.mark.parametrize("made", [of_job, injected_pod, warm_spare])
def test_a_sidecar_has_a_log_format_that_is_not_the_default(made: Any) -> None:
    assert read_format(made(JSON)) == ["json"]
    assert read_format(made(SidecarSettings())) == []


@ALL_KINDS
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        (SidecarSettings(), {"runAsUser": 65532}),
        (SidecarSettings(user=1001, group=0), {"runAsUser": 1001, "runAsGroup": 0}),
        (SidecarSettings(user=None), {}),
    ],
)
def test_an_understudy_container_runs_as_the_configured_user(
    made: Any, settings: SidecarSettings, expected: dict[str, int]
) -> None:
    security = own_container(made(settings))["securityContext"]
    assert {name: value for name, value in security.items() if name in ("runAsUser", "runAsGroup")} == expected
    assert security["runAsNonRoot"] is True


def test_a_job_may_take_a_spare_that_has_other_settings() -> None:
    assert difference(replace(a_job(), sidecar_settings=replace(JSON, user=None)), a_warm_pool(replicas=1)) == ""


@pytest.mark.parametrize(
    ("text", "user", "group"),
    [("65532:", 65532, None), (":", None, None), ("1:0", 1, 0), (":5", None, 5), ("2147483647:", 2147483647, None)],
)
def test_the_user_and_the_group_are_read(text: str, user: int | None, group: int | None) -> None:
    assert read_sidecar_settings({RUN_AS: text}) == SidecarSettings(user=user, group=group)
    assert read_sidecar_settings({}) == SidecarSettings(user=65532, group=None)


@pytest.mark.parametrize("text", ["", "65532", "0:", "0:0", "a:b", "-1:", "1:2:3", "2147483648:", ":2147483648"])
def test_an_invalid_user_or_group_is_rejected_with_the_fix(text: str) -> None:
    with pytest.raises(ValueError, match=rf"{RUN_AS} .chart: sidecar.runAs. is '{text}': set it to USER:GROUP"):
        read_sidecar_settings({RUN_AS: text})
