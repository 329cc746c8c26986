"""The manifest of a pool's warm spares, and when they are replaced."""

import re
from dataclasses import replace
from typing import Any

import pytest

from tests.unit.operator.given import AN_HOUR_AGO, IMAGE, KEYRING, NOW, TEMPLATE, a_job
from tests.unit.operator.given_pool import observed_pool
from tests.unit.operator.given_warm import SECRET, a_warm_pool, a_warm_spare
from understudy_operator.plan.facts.cluster_objects import Pod
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.pool_facts import Pool, PoolLauncher
from understudy_operator.plan.facts.secret_writes import SecretWrites
from understudy_operator.plan.intents import CreatePod, DeletePod, PoolPlan
from understudy_operator.plan.manifests.pool_pods import pool_fingerprint
from understudy_operator.plan.manifests.warm_spare_pods import pool_secret_name
from understudy_operator.plan.pool.comparing import difference
from understudy_operator.plan.pool.reconcile_pool import reconcile_pool
from understudy_protocol import pod as names

UNREADY_S = 600.0

P = a_warm_spare("p")


CREATED = SecretWrites({SECRET: AN_HOUR_AGO})


def plan(*pods: Pod, pool: Pool | None = None, writes: SecretWrites = CREATED) -> PoolPlan:
    pool = pool or a_warm_pool(replicas=1)
    facts = replace(observed_pool(pool, pods), sidecar_image=IMAGE, secret=SECRET, secret_writes=writes)
    return reconcile_pool(facts, NOW)


def created(**changes: Any) -> dict[str, Any]:
    (step,) = plan(pool=a_warm_pool(replicas=1, **changes)).pods
    assert isinstance(step, CreatePod)
    return dict(step.manifest)


def deletions(*pods: Pod, **more: Any) -> list[str]:
    return [step.reason for step in plan(*pods, **more).pods if isinstance(step, DeletePod)]


def variables(container: dict[str, Any]) -> dict[str, Any]:
    return {variable["name"]: variable.get("value") for variable in container["env"]}


def test_a_warm_spare_with_host_network_is_probed_at_its_own_port() -> None:
    spec = created(template={"spec": {**TEMPLATE["spec"], "hostNetwork": True}})["spec"]
    sidecar = spec["initContainers"][0]
    port = int(variables(sidecar)["UNDERSTUDY_MEMBERSHIP_PORT"])
    assert port in range(24000, 24999, 2)
    assert sidecar["readinessProbe"]["httpGet"] == {"path": "/ready", "port": port + 1}


def test_a_template_drains_no_spare() -> None:
    template = {"metadata": {"annotations": {"understudy.dev/drain": "always", "note": "x"}}, **TEMPLATE}
    annotations = created(template=template)["metadata"]["annotations"]
    assert (annotations.get("understudy.dev/drain"), annotations["note"]) == (None, "x")


def test_the_pools_secret_is_created_before_its_first_pod() -> None:
    first = plan(writes=SecretWrites())
    (create,) = first.objects
    assert (create.manifest["kind"], create.manifest["metadata"]["name"]) == ("Secret", SECRET)
    assert create.manifest["metadata"]["labels"][names.LABEL_JOB_UID] == "pool-uid"
    assert create.manifest["stringData"] == {
        names.KEY_FILE: KEYRING.of_pool("research", "pool-uid"),
        names.OPERATOR_KEY_FILE: KEYRING.operator_public(),
    }
    assert first.pods == ()
    assert plan().objects == ()


def test_the_name_of_the_secret_distinguishes_keys_and_contains_none() -> None:
    pool = a_warm_pool()
    others = [replace(pool, uid="another"), replace(pool, namespace="other")]
    result = {pool_secret_name(pool, KEYRING), *(pool_secret_name(other, KEYRING) for other in others)}
    result.add(pool_secret_name(pool, Keyring(b"another master secret, of 34 bytes")))
    assert len(result) == 4
    assert all(re.fullmatch(r"shared-[0-9a-f]{16}\.pool", name) for name in result)
    assert not any(name[7:23] in KEYRING.of_pool("research", "pool-uid") for name in result)


def test_a_pool_without_a_launcher_has_no_secret() -> None:
    assert pool_secret_name(a_warm_pool(launcher=None), KEYRING) == ""


def test_a_new_process_knows_from_a_spare_that_has_mounted_the_secret_that_it_exists() -> None:
    result = plan(P, pool=a_warm_pool(replicas=2), writes=SecretWrites())
    assert result.objects == ()
    assert [type(step) for step in result.pods] == [CreatePod]


def test_a_secret_that_spares_wait_for_is_created_again() -> None:
    waiting = replace(P, ready=False, sidecar_started=False, sidecar_ran=False, waiting_since=NOW - 30.0)
    assert [x.manifest["metadata"]["name"] for x in plan(waiting).objects] == [SECRET]
    assert plan(waiting, writes=SecretWrites({SECRET: NOW - 29.0})).objects == ()


def test_a_spare_has_sidecar_and_launcher_and_belongs_to_no_job() -> None:
    made = created()
    spec = made["spec"]
    (sidecar,) = spec["initContainers"]
    (trainer,) = spec["containers"]
    assert sidecar["image"] == IMAGE
    result = variables(sidecar)
    assert result[names.ENV_POOL] == "pool-uid"
    assert names.ENV_INDEX not in result
    assert sidecar["readinessProbe"]["httpGet"]["path"] == "/ready"
    assert trainer["command"] == ["/bin/sh", f"{names.SHARED_FOLDER}/{names.LAUNCHER_SCRIPT}", "python", "train.py"]
    assert spec["restartPolicy"] == "Never"
    assert "hostname" not in spec
    assert made["metadata"]["annotations"] == {}


def test_only_the_sidecar_mounts_the_keys_of_the_pool_and_the_job() -> None:
    spec = created()["spec"]
    (trainer,), (sidecar,) = spec["containers"], spec["initContainers"]
    volumes = {volume["name"]: volume for volume in spec["volumes"]}
    secrets = [source["secret"]["name"] for source in volumes[names.POD_VOLUME]["projected"]["sources"][:-1]]
    assert secrets == [SECRET]
    assert volumes[names.STATE_VOLUME]["emptyDir"]["medium"] == "Memory"
    hidden = {names.POD_VOLUME, names.STATE_VOLUME}
    assert hidden <= {mount["name"] for mount in sidecar["volumeMounts"]}
    assert not hidden & {mount["name"] for mount in trainer["volumeMounts"]}


@pytest.mark.attack("C4", "a pool's template that mounts the volume with the jobs' keys", before="its trainer got them")
def test_a_pools_template_cannot_mount_the_operators_own_volumes() -> None:
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("data", names.POD_VOLUME, names.STATE_VOLUME)]
    spec = {"containers": [{"name": "trainer", "command": ["x"], "volumeMounts": mounts}]}
    (trainer,) = created(template={"metadata": {}, "spec": spec})["spec"]["containers"]
    assert [mount["name"] for mount in trainer["volumeMounts"]] == ["data", names.SHARED_VOLUME]


@pytest.mark.attack("C4", "a pool's container that has a name of ours and mounts the keys", before="it got the keys")
@pytest.mark.parametrize("kind", ["containers", "initContainers"])
def test_no_name_of_a_container_lets_a_pools_template_mount_the_keys(kind: str) -> None:
    mounts = [{"name": name, "mountPath": f"/{name}"} for name in ("understudy-pod", "understudy-state")]
    spec: dict[str, Any] = {"containers": [{"name": "trainer", "command": ["x"]}]}
    spec[kind] = [*spec.get(kind, []), {"name": "understudy-gateway", "image": "x", "volumeMounts": mounts}]
    assert created(template={"metadata": {}, "spec": spec})["spec"][kind][-1]["volumeMounts"] == []


def test_the_settings_of_the_pools_launcher_reach_the_spare() -> None:
    launcher = PoolLauncher("trainer", 4, zygote=True, preload=("json",), warmup=("python", "warm.py"))
    result = variables(created(launcher=launcher)["spec"]["containers"][0])
    assert result[names.ENV_NPROC] == "4"
    assert result[names.ENV_PRELOAD] == "json"
    assert result[names.ENV_WARMUP] == '["python", "warm.py"]'


@pytest.mark.parametrize(
    ("resources", "devices"),
    [
        ({"limits": {"nvidia.com/gpu": 8}}, "8"),
        ({"limits": {"nvidia.com/gpu": "4", "memory": "1Ti"}}, "4"),
        ({"requests": {"nvidia.com/gpu": 2}, "limits": {"nvidia.com/gpu": 2}}, "2"),
        ({"limits": {"nvidia.com/gpu": "1e1"}}, "1"),
        ({"limits": {"nvidia.com/gpu": 0}}, None),
        ({"limits": {"memory": "1Ti"}}, None),
        ({}, None),
    ],
)
def test_the_launcher_gets_the_number_of_devices(resources: dict[str, Any], devices: str | None) -> None:
    (trainer,) = TEMPLATE["spec"]["containers"]
    template = {"spec": {"containers": [{**trainer, "resources": resources}]}}
    assert variables(created(template=template)["spec"]["containers"][0]).get(names.ENV_DEVICES) == devices
    assert difference(a_job(pod_template=template), a_warm_pool(template=template)) == ""


def test_the_launcher_gets_the_names_of_the_templates_own_variables() -> None:
    template = {
        "spec": {
            "containers": [
                {
                    "name": "trainer",
                    "image": "i",
                    "command": ["python"],
                    "env": [{"name": "LR", "value": "1"}, {"name": "T", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}],
                }
            ]
        }
    }
    result = variables(created(template=template)["spec"]["containers"][0])
    assert result[names.ENV_TEMPLATE_VARIABLES] == '["LR"]'


def test_a_change_of_the_launcher_is_a_new_template() -> None:
    assert pool_fingerprint(a_warm_pool()) != pool_fingerprint(a_warm_pool(launcher=PoolLauncher(nproc_per_node=4)))
    assert pool_fingerprint(a_warm_pool()) != pool_fingerprint(a_warm_pool(launcher=None))


def test_a_spare_with_the_key_of_another_master_secret_is_replaced_like_one_of_an_old_template() -> None:
    previous = pool_secret_name(a_warm_pool(), Keyring(b"another master secret, of 34 bytes"))
    steps = plan(a_warm_spare("p", secret=previous)).pods
    assert [type(step) for step in steps] == [CreatePod]


def test_a_spare_that_has_not_been_ready_for_long_is_replaced() -> None:
    unready = replace(P, ready=False, unready_since=NOW - UNREADY_S)
    assert deletions(unready) == [f"it has not been ready for {UNREADY_S:g} s"]
    assert deletions(replace(unready, unready_since=NOW - UNREADY_S + 1)) == []
    assert deletions(replace(unready, unready_since=0.0)) == []


def test_the_pool_is_reconciled_when_a_spare_will_have_been_unready_for_too_long() -> None:
    assert plan(replace(P, ready=False, unready_since=NOW - UNREADY_S + 7)).requeue_after_s == 7.0
    assert plan(P).requeue_after_s is None
