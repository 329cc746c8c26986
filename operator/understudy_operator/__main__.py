"""Start the operator: `python -m understudy_operator`, with UNDERSTUDY_SIDECAR_IMAGE set.

UNDERSTUDY_MASTER_SECRET (/understudy-master/secret) is the file with the master secret (settings.py).
UNDERSTUDY_NAMESPACES names the watched namespaces (settings.py). If unset, the operator watches all. UNDERSTUDY_LEASE
(namespace/name) is the Lease that the replicas share: one of them leads. If unset, this operator assumes that it is the
only replica. UNDERSTUDY_SHARD (0/2) is this operator's shard and the number of shards (plan/leadership/shard.py). If
unset, there is one shard. UNDERSTUDY_SHARD_NAMESPACES (team-a=0,team-b=1) lists the namespaces whose shard was chosen.
UNDERSTUDY_LEASE_TIMES (15,10,2) has the Lease's times (settings.py). UNDERSTUDY_HEALTH_PORT (8080) serves GET /healthz
and /readyz. UNDERSTUDY_METRICS_PORT (none) serves GET /metrics. UNDERSTUDY_LOG_LEVEL (INFO) is the lowest level that is
logged. UNDERSTUDY_LOG_FORMAT (text, or json) is the log format of the operator, and of the sidecars of pods that it
creates. UNDERSTUDY_FAULT_SOURCES adds rows to the table of fault sources (a JSON list; docs/how-to/faults.md).
UNDERSTUDY_NODE_FAULTS (namespace/name) is the ConfigMap that records which nodes have failed jobs.
UNDERSTUDY_NETWORK_POLICIES enables a NetworkPolicy for each job (settings.py).
"""

import asyncio
import logging
import os
import sys
from typing import Any

import kopf

from understudy_operator import handlers
from understudy_operator.metrics.serving import port_of
from understudy_operator.settings import (
    read_fault_settings,
    read_lease_settings,
    read_master_secret,
    read_namespaces,
    read_network_rules,
)
from understudy_protocol import logs
from understudy_protocol.garbage import SHORT_SCANS, collect_rarely


def main() -> int:
    try:
        logs.configure(os.environ, "%(asctime)s.%(msecs)03d %(levelname)s %(name)s %(message)s")
    except ValueError as error:
        logging.error("%s", error)
        return 2
    for chatty in ("kopf", "aiohttp.access"):  # they log each event and each probe
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        read_lease_settings(os.environ)
    except ValueError as error:
        logging.error(
            "the settings of the lease are wrong (chart: operator.leaderElection, shards, shardNamespaces): %s", error
        )
        return 2
    if not os.environ.get("UNDERSTUDY_SIDECAR_IMAGE"):
        logging.error("UNDERSTUDY_SIDECAR_IMAGE is not set: set it to the image of the sidecar (chart: sidecar.image)")
        return 2
    try:
        read_master_secret(os.environ)
    except ValueError as error:
        logging.error("%s (chart: masterSecret)", error)
        return 2
    try:
        read_fault_settings(os.environ)
    except ValueError as error:
        logging.error("the settings of fault sources are wrong (chart: faults): %s", error)
        return 2
    try:
        read_network_rules(os.environ)
    except ValueError as error:
        logging.error("the settings of the jobs' networks are wrong (chart: networkPolicies): %s", error)
        return 2
    try:
        namespaces = read_namespaces(os.environ)
    except ValueError as error:
        logging.error("the watched namespaces are wrong (chart: watchNamespaces): %s", error)
        return 2
    try:
        port_of(os.environ)
    except ValueError as error:
        logging.error("%s", error)
        return 2
    collect_rarely(SHORT_SCANS)
    assert handlers  # imported because it registers kopf's handlers
    # kopf asks for the user's name, and the image's user has none. getpass.getuser() reads this variable first.
    os.environ.setdefault("LOGNAME", "understudy")
    where: Any = {"namespaces": namespaces} if namespaces else {"clusterwide": True}
    asyncio.run(kopf.operator(**where, standalone=True, memo=kopf.Memo()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
