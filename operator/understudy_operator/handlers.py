"""kopf's door: the operator's start and end, and watches that go in here. Nothing is decided.

`on.event` handlers only: they put the object into the store and wake the job. kopf swallows their errors, and its
indexes, daemons and timers cost more than they give at thousands of pods. Pods and nodes, of which there are thousands,
have a watch of our own (watch.py): kopf keeps a task, a queue and copies for each object.
"""

import os
from functools import partial
from typing import Any
from urllib.request import getproxies

import kopf
from kubernetes.aio import client, config

from understudy_operator import health
from understudy_operator.apply.api import Api
from understudy_operator.clock import Backoffs, Clock
from understudy_operator.fault_settings import read_fault_settings
from understudy_operator.kopf_storage import NoDiffs, NoProgress
from understudy_operator.lease_settings import read_lease_settings
from understudy_operator.metrics.operator import OperatorMetrics
from understudy_operator.metrics.serving import port_of, serve
from understudy_operator.network_settings import read_network_rules
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator, new_identity
from understudy_operator.plan.ownership import API_VERSION
from understudy_protocol import logs
from understudy_protocol import pod as names

GROUP, VERSION = API_VERSION.split("/")
HEALTH_PORT = 8080


def configure(settings: kopf.OperatorSettings, metrics: OperatorMetrics) -> None:
    """What kopf is to do, and what it may ask for: of Secrets and other objects those that have our label."""
    settings.persistence.diffbase_storage = NoDiffs()
    settings.persistence.progress_storage = NoProgress()
    settings.posting.enabled = False  # events are ours to word
    settings.scanning.disabled = True  # the CRD is there, or the start fails and says so
    settings.watching.server_timeout = 300
    settings.watching.client_timeout = 330
    settings.networking.error_backoffs = Backoffs(metrics.watch_asked_again)
    settings.networking.enforce_retry_after = True
    for plural in ("services", "secrets", "jobs", "persistentvolumeclaims"):
        settings.watching.label_selectors[plural] = names.LABEL_JOB_UID


def connections(configuration: client.Configuration) -> client.Configuration:
    """How the API server is connected to."""
    # No limit but the pace of writes: where they waited for each other's connections, the lease's renewal would, too.
    configuration.connection_pool_maxsize = 0
    # Where no proxy is named in the environment, all that aiohttp takes from there is a password in ~/.netrc, for which
    # it looks in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    return configuration


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    metrics = OperatorMetrics()
    configure(settings, metrics)
    await config.load_config()  # type: ignore[no-untyped-call]
    memo.api_client = client.ApiClient(connections(client.Configuration.get_default_copy()))
    election = read_lease_settings(os.environ)
    memo.operator = Operator(
        partial(Api, memo.api_client, answered=metrics.answered),
        os.environ["UNDERSTUDY_SIDECAR_IMAGE"],
        election.lease,
        new_identity(os.environ.get("HOSTNAME", "understudy-operator")),
        Clock(),
        read_fault_settings(os.environ),
        network_rules=read_network_rules(os.environ),
        watches=(Kind.POD, Kind.NODE),
        metrics=metrics,
        log_format=logs.read_format(os.environ),
        times=election.times,
    )
    memo.operator.start()
    memo.health = await health.serve(memo.operator, int(os.environ.get("UNDERSTUDY_HEALTH_PORT") or HEALTH_PORT))
    if (port := port_of(os.environ)) is not None:
        memo.metrics = await serve(metrics.book.text, port)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    for server in ("health", "metrics"):
        if server in memo:
            await memo[server].cleanup()
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
