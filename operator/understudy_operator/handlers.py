"""kopf's door: watches go in here, and nothing is decided.

`on.event` handlers only: they put the object into the store and wake the job. kopf swallows their errors, and its
indexes, daemons and timers cost more than they give at thousands of pods.
"""

import itertools
import os
from collections.abc import Iterator
from functools import partial
from typing import Any

import kopf
from kubernetes.aio import client, config

from understudy_operator import health
from understudy_operator.apply.api import Api
from understudy_operator.clock import Clock, jittered
from understudy_operator.fault_settings import read_fault_settings
from understudy_operator.kopf_storage import NoDiffs, NoProgress
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator, new_identity
from understudy_operator.plan.ownership import API_VERSION
from understudy_protocol import pod as names

GROUP, VERSION = API_VERSION.split("/")
HEALTH_PORT = 8080


class Backoffs:
    """Of a watch whose API server is away: it asks for as long as it takes, at times of its own."""

    def __iter__(self) -> Iterator[float]:
        return (jittered(pause_s) for pause_s in itertools.chain((0.5, 1.0, 2.0), itertools.repeat(4.0)))


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False  # events are ours to word
    settings.scanning.disabled = True  # the CRD is there, or the start fails and says so
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.networking.error_backoffs = Backoffs()
    settings.networking.enforce_retry_after = True
    settings.watching.label_selectors["pods"] = names.LABEL_JOB_UID
    settings.watching.label_selectors["services"] = names.LABEL_JOB_UID
    settings.watching.label_selectors["secrets"] = names.LABEL_JOB_UID
    settings.watching.label_selectors["jobs"] = names.LABEL_JOB_UID
    settings.watching.label_selectors["persistentvolumeclaims"] = names.LABEL_JOB_UID
    await config.load_config()  # type: ignore[no-untyped-call]
    memo.api_client = client.ApiClient()
    namespace, slash, name = os.environ.get("UNDERSTUDY_LEASE", "").partition("/")
    memo.operator = Operator(
        partial(Api, memo.api_client),
        os.environ["UNDERSTUDY_SIDECAR_IMAGE"],
        (namespace, name) if slash else None,
        new_identity(os.environ.get("HOSTNAME", "understudy-operator")),
        Clock(),
        read_fault_settings(os.environ),
    )
    memo.operator.start()
    memo.health = await health.serve(memo.operator, int(os.environ.get("UNDERSTUDY_HEALTH_PORT") or HEALTH_PORT))


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    if "health" in memo:
        await memo.health.cleanup()
    if "operator" in memo:
        await memo.operator.stop()
        await memo.api_client.close()


@kopf.on.event(GROUP, VERSION, "trainingjobs")
async def job_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.JOB, event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "hotsparepools")
async def pool_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.POOL, event["type"], event["object"])


@kopf.on.event(GROUP, VERSION, "injectedjobs")
async def injected_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.INJECTED, event["type"], event["object"])


@kopf.on.event("pods", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def pod_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.POD, event["type"], event["object"])


@kopf.on.event("batch", "v1", "jobs", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def child_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.CHILD, event["type"], event["object"])


@kopf.on.event("services", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def service_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.SERVICE, event["type"], event["object"])


@kopf.on.event("secrets", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def secret_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.SECRET, event["type"], event["object"])


@kopf.on.event("persistentvolumeclaims", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def claim_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.CLAIM, event["type"], event["object"])


@kopf.on.event("nodes")
async def node_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.NODE, event["type"], event["object"])
