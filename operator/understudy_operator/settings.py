"""The chart's values, read from environment variables and a file before anything starts.

    variable                     value of the chart               read by
    ---------------------------  -------------------------------  --------------------
    UNDERSTUDY_FAULT_SOURCES     faults.sources, as JSON          read_fault_settings
    UNDERSTUDY_NODE_FAULTS       -: the memory's ConfigMap        read_fault_settings
    UNDERSTUDY_LEASE             -: the Lease                     read_lease_settings
    UNDERSTUDY_LEASE_TIMES       operator.leaderElection          read_lease_settings
    UNDERSTUDY_MASTER_SECRET     masterSecret, as a path          read_master_secret
    UNDERSTUDY_NAMESPACES        watchNamespaces                  read_namespaces
    UNDERSTUDY_NETWORK_POLICIES  networkPolicies.jobs.enabled     read_network_rules
    UNDERSTUDY_SHARD             operator.shards                  read_lease_settings
    UNDERSTUDY_SHARD_NAMESPACES  operator.shardNamespaces         read_lease_settings

plan/facts/host_ports.py reads hostNetworkPorts, for the webhook too.

A wrong value raises ValueError, which ends the operator. Its message names the value and the allowed values; it never
quotes the content of the file with the master secret.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from understudy_operator.plan.facts.keyring import KEY_BYTES
from understudy_operator.plan.leadership.lease_election import LeaseTimes
from understudy_operator.plan.leadership.shard import MOST_SHARDS, SINGLE_SHARD, Shard
from understudy_operator.plan.manifests.network_policy import Rules
from understudy_operator.plan.verdicts.built_in import BUILT_IN
from understudy_operator.plan.verdicts.fault_sources import FaultSource
from understudy_operator.plan.verdicts.table import table_of

ENV_SOURCES = "UNDERSTUDY_FAULT_SOURCES"
ENV_MEMORY = "UNDERSTUDY_NODE_FAULTS"
ENV_LEASE = "UNDERSTUDY_LEASE"
ENV_TIMES = "UNDERSTUDY_LEASE_TIMES"
ENV_MASTER_SECRET = "UNDERSTUDY_MASTER_SECRET"  # noqa: S105 (the name of a variable)
ENV_NAMESPACES = "UNDERSTUDY_NAMESPACES"
ENV_SHARD = "UNDERSTUDY_SHARD"
ENV_LISTED = "UNDERSTUDY_SHARD_NAMESPACES"
ENV_RULES = "UNDERSTUDY_NETWORK_POLICIES"
MASTER_SECRET_PATH = "/understudy-master/secret"  # noqa: S105 (its path)
MOST_MASTER_BYTES = 4096
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
Env = Mapping[str, str]


@dataclass(frozen=True)
class FaultSettings:
    table: tuple[FaultSource, ...] = BUILT_IN
    memory: tuple[str, str] | None = None  # namespace and name; None: only in the process's memory


@dataclass(frozen=True)
class LeaseSettings:
    lease: tuple[str, str] | None = None  # namespace and name; None: this operator has no other replica
    times: LeaseTimes = field(default_factory=LeaseTimes)
    shard: Shard = SINGLE_SHARD


def read_fault_settings(env: Env) -> FaultSettings:
    memory = _place(env, ENV_MEMORY, "ConfigMap")
    return FaultSettings(table_of(env.get(ENV_SOURCES, "")), memory)


def read_lease_settings(env: Env) -> LeaseSettings:
    lease, shard = _place(env, ENV_LEASE, "Lease"), _shard(env.get(ENV_SHARD, ""), env.get(ENV_LISTED, ""))
    if lease is None and shard.count > 1:
        raise ValueError(
            f"{ENV_SHARD} is {shard.index}/{shard.count}, and {ENV_LEASE} is not set: set it to the Lease of the "
            f"installation, as namespace/name, or unset {ENV_SHARD}"
        )
    return LeaseSettings(lease, _times(env.get(ENV_TIMES, "")), shard)


def read_master_secret(env: Env) -> bytes:
    """All bytes of the file, including a line break at its end."""
    path = env.get(ENV_MASTER_SECRET) or MASTER_SECRET_PATH
    try:
        with open(path, "rb") as file:
            master = file.read(MOST_MASTER_BYTES + 1)
    except OSError as error:
        issue = f"cannot be read ({error.strerror})"
    else:
        if KEY_BYTES <= len(master) <= MOST_MASTER_BYTES:
            return master
        more = "more than " if len(master) > MOST_MASTER_BYTES else ""
        issue = f"has {more}{min(len(master), MOST_MASTER_BYTES)} bytes"
    raise ValueError(
        f"the file {path} {issue}: the operator derives the keys of all jobs from it; mount a Secret there whose file "
        f"has {KEY_BYTES} to {MOST_MASTER_BYTES} random bytes"
    )


def read_namespaces(env: Env) -> tuple[str, ...]:
    """Empty: all namespaces."""
    text = env.get(ENV_NAMESPACES, "")
    if not text:
        return ()
    names = text.split(",")
    wrong = next((name for name in names if not _NAMESPACE.fullmatch(name)), None)
    if wrong is not None:
        raise ValueError(
            f"{ENV_NAMESPACES} contains {wrong!r}, which is not the name of a namespace: correct or remove it"
        )
    return tuple(dict.fromkeys(names))


def read_network_rules(env: Env) -> Rules | None:
    """Ingress rules. None: jobs get no NetworkPolicy."""
    text = env.get(ENV_RULES, "")
    if not text:
        return None
    fix = "set it to a JSON list of ingress rules of a NetworkPolicy, or unset it"
    try:
        rules = json.loads(text)
    except ValueError as error:
        raise ValueError(f"{ENV_RULES} is not JSON: {error}; {fix}") from error
    # A rule without peers would allow all peers.
    if not isinstance(rules, list) or not all(isinstance(rule, dict) and rule.get("from") for rule in rules):
        raise ValueError(f"{ENV_RULES} is {text}; {fix}; each rule has to name its peers (from)")
    return tuple(rules)


def _place(env: Env, variable: str, kind: str) -> tuple[str, str] | None:
    """Namespace and name of an object."""
    place = env.get(variable, "")
    namespace, _, name = place.partition("/")
    if place and not (namespace and name):
        raise ValueError(f"{variable} is {place!r}: set it to a {kind}, as namespace/name")
    return (namespace, name) if place else None


def _shard(text: str, listed: str) -> Shard:
    if not text:
        return SINGLE_SHARD
    match = re.fullmatch(r"([0-9])/([0-9])", text)
    index, count = (int(match[1]), int(match[2])) if match else (0, 0)
    if not index < count <= MOST_SHARDS:
        raise ValueError(
            f"{ENV_SHARD} is {text!r}: set it to the number of the shard and the number of shards, such as 0/2; there "
            f"are at most {MOST_SHARDS} shards, and the first one is 0"
        )
    for entry in listed.split(",") if listed else ():
        namespace, _, chosen = entry.partition("=")
        if not _NAMESPACE.fullmatch(namespace) or not re.fullmatch("[0-9]", chosen) or int(chosen) >= count:
            raise ValueError(
                f"{ENV_LISTED} contains {entry!r}: set it to namespaces with the number of a shard from 0 to "
                f"{count - 1}, such as team-a=0,team-b=1"
            )
    return Shard(index, count, listed if count > 1 else "")


def _times(text: str) -> LeaseTimes:
    if not text:
        return LeaseTimes()
    parts = text.split(",")
    if len(parts) != 3 or not all(part.isascii() and part.isdecimal() and len(part) < 6 for part in parts):
        raise ValueError(
            f"{ENV_TIMES} is {text!r}: set it to lease duration, renew deadline and retry period in whole seconds, "
            "such as 15,10,2"
        )
    lease, deadline, period = map(float, parts)
    # A renewal without an answer takes 0.3 of the deadline. Then there must be time for one read and one renewal.
    if not 4.0 <= 4 * period <= deadline < lease:
        raise ValueError(
            f"{ENV_TIMES} is {text!r}: the lease duration has to be longer than the renew deadline, the renew deadline "
            "at least four times the retry period, and the retry period at least 1"
        )
    return LeaseTimes(lease, deadline, period)
