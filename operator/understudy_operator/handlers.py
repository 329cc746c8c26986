"""kopf's handlers: the operator's start and end. They decide nothing.

kopf watches nothing. It would keep a task, a queue and copies for each object, and an object that its JSON decoder
rejects (nested 1,000 times, as the CRDs' templates may be) would end the process, again after each restart. The
operator has its own watches for all kinds (watch.py).
"""

import os
import resource
from functools import partial
from typing import Any
from urllib.request import getproxies

import kopf
from kubernetes.aio import client, config

from understudy_operator import health
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.metrics.serving import port_of, serve
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator, new_identity
from understudy_operator.plan.facts.keyring import Keyring
from understudy_operator.plan.facts.sidecar_settings import read_sidecar_settings
from understudy_operator.runtime.api import Api
from understudy_operator.runtime.clock import Backoffs, Clock
from understudy_operator.settings import (
    read_fault_settings,
    read_lease_settings,
    read_master_secret,
    read_namespaces,
    read_network_rules,
)

HEALTH_PORT = 8080


def configure(settings: kopf.OperatorSettings) -> None:
    """Turn off kopf's own events and scans."""
    settings.posting.enabled = False
    settings.scanning.disabled = True
    settings.networking.error_backoffs = Backoffs()


def connections(configuration: client.Configuration) -> client.Configuration:
    """The settings of connections to the API server."""
    # Only the pace of writes limits requests. With a limited pool, the lease's renewal would wait for other requests.
    configuration.connection_pool_maxsize = 0
    # Without a proxy in the environment, aiohttp would only take a password in ~/.netrc from there, and would look for
    # that file in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    return configuration


def open_all_files() -> None:
    """Raise the limit of open files to its maximum: a process without a free descriptor cannot renew its lease."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


@kopf.on.startup()
async def start(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    open_all_files()
    metrics = OperatorMetrics()
    configure(settings)
    await config.load_config()  # type: ignore[no-untyped-call]
    memo.api_client = client.ApiClient(connections(client.Configuration.get_default_copy()))
    election = read_lease_settings(os.environ)
    memo.operator = Operator(
        partial(Api, memo.api_client, on_response=metrics.count_request),
        Keyring(read_master_secret(os.environ)),
        os.environ["UNDERSTUDY_SIDECAR_IMAGE"],
        election.lease,
        new_identity(os.environ.get("HOSTNAME", "understudy-operator")),
        Clock(),
        read_fault_settings(os.environ),
        network_rules=read_network_rules(os.environ),
        watches=Kind,
        namespaces=read_namespaces(os.environ),
        metrics=metrics,
        times=election.times,
        sidecar_settings=read_sidecar_settings(os.environ),
        shard=election.shard,
    )
    memo.operator.start()
    memo.health = await health.serve(memo.operator, int(os.environ.get("UNDERSTUDY_HEALTH_PORT") or HEALTH_PORT))
    if (port := port_of(os.environ)) is not None:
        memo.metrics = await serve(metrics.book.text, port)


@kopf.on.cleanup()
async def stop(memo: kopf.Memo, **_: Any) -> None:
    for server in ("health", "metrics"):
        if server in memo:
            await memo[server].close()
    if "operator" in memo:
        await memo.operator.stop()
        await memo.api_client.close()
