"""kopf's door: watches go in here, and nothing is decided.

`on.event` handlers only: they put the object into the store and wake the job. kopf swallows their errors, and its
indexes, daemons and timers cost more than they give at thousands of pods.
"""

import os
from typing import Any

import kopf
from kubernetes.aio import client, config

from understudy_operator.apply.api import Api
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator
from understudy_operator.plan.ownership import API_VERSION
from understudy_protocol import pod as names

GROUP, VERSION = API_VERSION.split("/")


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    settings.posting.enabled = False  # events are ours to word
    settings.scanning.disabled = True  # the CRD is there, or the start fails and says so
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.watching.label_selectors["pods"] = names.LABEL_JOB_UID
    settings.watching.label_selectors["services"] = names.LABEL_JOB_UID
    settings.watching.label_selectors["jobs"] = names.LABEL_JOB_UID
    await config.load_config()  # type: ignore[no-untyped-call]
    memo.api_client = client.ApiClient()
    memo.operator = Operator(Api(memo.api_client), os.environ["UNDERSTUDY_SIDECAR_IMAGE"])
    await memo.operator.start()


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    if "operator" in memo:
        await memo.operator.stop()
        await memo.api_client.close()


@kopf.on.event(GROUP, VERSION, "trainingjobs")
async def job_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.JOB, event["type"], event["object"])


@kopf.on.event("pods", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def pod_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.POD, event["type"], event["object"])


@kopf.on.event("batch", "v1", "jobs", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def child_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.CHILD, event["type"], event["object"])


@kopf.on.event("services", labels={names.LABEL_JOB_UID: kopf.PRESENT})
async def service_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.SERVICE, event["type"], event["object"])


@kopf.on.event("nodes")
async def node_event(event: Any, memo: kopf.Memo, **_: Any) -> None:
    memo.operator.saw(Kind.NODE, event["type"], event["object"])
