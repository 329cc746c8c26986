"""kopf's door: the operator's start and end. Nothing is decided.

kopf watches nothing. It keeps a task, a queue and copies for each object, and one object that its JSON decoder refuses
(nested 1,000 times, as the CRDs' templates may be) ends the process, again after each restart. All kinds have a watch
of our own (watch.py).
"""

import os
import resource
from functools import partial
from typing import Any
from urllib.request import getproxies

import kopf
from kubernetes.aio import client, config

from understudy_operator import health
from understudy_operator.apply.api import Api
from understudy_operator.clock import Backoffs, Clock
from understudy_operator.fault_settings import read_fault_settings
from understudy_operator.keyring import Keyring
from understudy_operator.lease_settings import read_lease_settings
from understudy_operator.master_secret import read_master_secret
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_operator.metrics.serving import port_of, serve
from understudy_operator.namespace_settings import read_namespaces
from understudy_operator.network_settings import read_network_rules
from understudy_operator.observe.store import Kind
from understudy_operator.operator import Operator, new_identity
from understudy_protocol import logs

HEALTH_PORT = 8080


def configure(settings: kopf.OperatorSettings) -> None:
    """What kopf is to do: nothing."""
    settings.posting.enabled = False  # events are ours to word
    settings.scanning.disabled = True
    settings.networking.error_backoffs = Backoffs()


def connections(configuration: client.Configuration) -> client.Configuration:
    """How the API server is connected to."""
    # No limit but the pace of writes: where they waited for each other's connections, the lease's renewal would, too.
    configuration.connection_pool_maxsize = 0
    # Where no proxy is named in the environment, all that aiohttp takes from there is a password in ~/.netrc, for which
    # it looks in a thread before each request.
    configuration.client_session_kwargs = {"trust_env": bool(getproxies())}
    return configuration


def open_all_files() -> None:
    """As many as the container may have: a process without a file left cannot renew its lease."""
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
            await memo[server].close()
    if "operator" in memo:
        await memo.operator.stop()
        await memo.api_client.close()
