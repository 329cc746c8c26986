"""The gateway in a rollout's pod, and the trainers' settings for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.unit.operator.given import ADDRESS, IMAGE, a_group, a_job
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.spec import RolloutGateway, RolloutsSpec
from understudy_operator.plan.manifests.child_jobs import job_manifest
from understudy_operator.plan.manifests.gateways import MODULE, STATE_PATH, TOKEN_PATH
from understudy_operator.plan.manifests.pods import pod_manifest
from understudy_operator.plan.manifests.shape import job_facts_json
from understudy_protocol import pod as names
from understudy_protocol.enums import OnFailedUpdate
from understudy_rollout.engines import SglangEngine
from understudy_rollout.gateway.__main__ import options
from understudy_rollout.gateway.flights import Policy
from understudy_rollout.gateway.update_client import WEIGHTS
from understudy_rollout.replicas import ENV_ROLLOUTS, ENV_TOKEN_FILE, NoRollouts, replicas_of_this_job

TRAINER, ROLLOUT, DATA = a_group("trainer", 1, 2), a_group("rollout", 2, 1), a_group("data", 1, 1)
GATEWAY = RolloutGateway(engine_port=30000)


def job(gateway: RolloutGateway | None = GATEWAY, **rollouts: Any) -> Job:
    result = RolloutsSpec(("rollout",), gateway=gateway, **rollouts)
    spec = {"replicated_jobs": (TRAINER, ROLLOUT, DATA), "rollouts": result}
    return a_job(spec=spec, groups=(TRAINER,))


def pod_of(group: Any, given: Job) -> dict[str, Any]:
    spec: dict[str, Any] = job_manifest(given, group, 0, IMAGE)["spec"]["template"]["spec"]
    return spec


def trainer_pod(given: Job) -> dict[str, Any]:
    made = pod_manifest(given, index=0, serial="1", facts="facts", sidecar_image=IMAGE)
    spec: dict[str, Any] = made["spec"]
    return spec


def environment(container: Mapping[str, Any]) -> dict[str, str]:
    return {x["name"]: x.get("value", "") for x in container["env"]}


def test_the_gateway_is_the_first_container_of_a_rollouts_pod() -> None:
    spec = pod_of(ROLLOUT, job(RolloutGateway(30000, 9000, waits_for_requests=True, initial_version="base")))
    gateway = spec["initContainers"][0]
    assert (gateway["name"], gateway["image"], gateway["restartPolicy"]) == (names.GATEWAY_CONTAINER, IMAGE, "Always")
    assert gateway["command"][1:] == ["-m", MODULE]
    # the gateway accepts these arguments
    result = options(gateway["args"])
    assert (result.engine, result.port, result.token_file) == ("http://127.0.0.1:30000", 9000, Path(TOKEN_PATH))
    assert (result.in_flight_requests, result.initial_version) == (Policy.WAIT, "base")
    assert gateway["startupProbe"]["httpGet"] == {"path": WEIGHTS, "port": 9000}
    assert STATE_PATH == WEIGHTS


def test_a_gateways_state_outlives_its_container_and_not_its_pod() -> None:
    spec = pod_of(ROLLOUT, job())
    gateway = spec["initContainers"][0]
    (volume,) = [x for x in spec["volumes"] if x["name"] == names.GATEWAY_VOLUME]
    assert volume["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Mi"}
    (mount,) = [x for x in gateway["volumeMounts"] if x["name"] == names.GATEWAY_VOLUME]
    state_file = options(gateway["args"]).state_file
    assert state_file is not None
    assert state_file.parent == Path(mount["mountPath"])
    # and no other container can change it
    assert names.GATEWAY_VOLUME not in {x["name"] for x in spec["containers"][0].get("volumeMounts", ())}


def test_a_gateway_is_added_only_to_rollouts_that_enable_it() -> None:
    assert "initContainers" not in pod_of(DATA, job())
    assert "initContainers" not in pod_of(ROLLOUT, job(gateway=None))


def test_gateway_and_trainer_mount_the_token_and_not_the_key() -> None:
    # given the volumes of a rollout's pod and of a trainer's pod
    for spec in (pod_of(ROLLOUT, job()), trainer_pod(job())):
        (volume,) = [x for x in spec["volumes"] if x["name"] == names.ROLLOUT_VOLUME]
        assert volume["secret"]["secretName"] == "llm-job-uid-rollouts"
        assert volume["secret"]["items"] == [{"key": names.ROLLOUT_TOKEN_KEY, "path": names.ROLLOUT_TOKEN_FILE}]
    (trainer,) = trainer_pod(job())["containers"]
    assert names.POD_VOLUME not in {mount["name"] for mount in trainer["volumeMounts"]}
    assert environment(trainer)[names.ENV_ROLLOUT_TOKEN_FILE] == TOKEN_PATH
    # and no volume of a rollout's pod has the key
    volumes = pod_of(ROLLOUT, job())["volumes"]
    assert {x["secret"]["secretName"] for x in volumes if "secret" in x} == {"llm-job-uid-rollouts"}
    assert not [x for x in volumes if "projected" in x]


def test_workers_find_every_replica_by_their_variables(tmp_path: Path) -> None:
    (trainer,) = trainer_pod(job())["containers"]
    token = tmp_path / "token"
    token.write_text("secret\n")
    result = environment(trainer) | {ENV_TOKEN_FILE: str(token)}
    replicas = replicas_of_this_job(SglangEngine, ranks=4, environment=result)
    assert [(x.name, x.ranks) for x in replicas] == [("llm-rollout-0", 4), ("llm-rollout-1", 4)]
    # and call each server through its gateway
    assert [x.engine.server.admission for x in replicas] == [x.admission for x in replicas]  # type: ignore[attr-defined]
    assert [x.admission.server.url for x in replicas] == [  # type: ignore[attr-defined]
        "http://llm-rollout-0-0.llm:8080",
        "http://llm-rollout-1-0.llm:8080",
    ]


def test_the_pods_service_account_does_not_reach_the_gateway() -> None:
    # Kubernetes mounts its token if nothing is mounted at that path
    gateway = pod_of(ROLLOUT, job())["initContainers"][0]
    assert names.SERVICE_ACCOUNT_FOLDER in [mount["mountPath"] for mount in gateway["volumeMounts"]]


def test_other_jobs_have_no_gateway_variables() -> None:
    with pytest.raises(NoRollouts, match="UNDERSTUDY_ROLLOUTS, UNDERSTUDY_ROLLOUT_TOKEN_FILE not set"):
        replicas_of_this_job(SglangEngine, environment={})
    assert (ENV_ROLLOUTS, ENV_TOKEN_FILE) == (names.ENV_ROLLOUTS, names.ENV_ROLLOUT_TOKEN_FILE)


@pytest.mark.parametrize("gateway", [GATEWAY, None])
def test_workers_of_a_job_with_rollouts_know_where_to_report(gateway: RolloutGateway | None) -> None:
    (trainer,) = trainer_pod(job(gateway))["containers"]
    assert environment(trainer)[names.ENV_ROLLOUTS_SOCKET] == "/understudy/rollouts.sock"
    assert (names.ENV_ROLLOUTS in environment(trainer)) == (gateway is not None)


def test_sidecars_get_the_policy_for_failed_updates() -> None:
    def shape(given: Job) -> Any:
        return json.loads(job_facts_json(given, ADDRESS))["shape"]

    result = shape(job(max_retries=2))
    assert (result["on_failed_update"], result["update_retries"]) == (OnFailedUpdate.RESTART_JOB.value, 2)
    assert shape(a_job())["on_failed_update"] is None
