"""Checks of `doctor` about the pods of jobs: can they use their volume claims, and reach each other. Pure.

NetworkPolicies are evaluated as Kubernetes defines them. Policies of a network plugin's own kinds, and firewalls, are
not seen. A selector of namespaces is compared with the name of the namespace alone: if it asks for another label, it
counts as a match, so that no connection is reported as blocked without a certain reason.
"""

import ipaddress
from collections.abc import Iterable, Iterator, Sequence
from functools import cache

from understudy_cli import fields
from understudy_cli.fields import Raw
from understudy_cli.views.check_result import CheckResult, Level
from understudy_protocol import pod as names

_NAMED = 3  # examples in a message
_NAMESPACE_NAME = "kubernetes.io/metadata.name"
_ALL_PORTS = range(1, 65536)


# Storage --------------------------------------------------------------------------------------------------------------


def unusable_claims(check: str, pods: Iterable[Raw], claims: Iterable[Raw]) -> Iterator[CheckResult]:
    """pods: also those that are of no job, which are ignored."""
    known = {(_namespace(claim), _name(claim)): claim for claim in claims}
    users: dict[tuple[str, str], list[Raw]] = {}
    for pod in filter(is_of_a_job, pods):
        for volume in fields.entries(pod, "spec", "volumes"):
            if claim := fields.text(volume, "persistentVolumeClaim", "claimName"):
                users.setdefault((_namespace(pod), claim), []).append(pod)
    for (namespace, name), own in sorted(users.items(), key=lambda entry: entry[0]):
        found = known.get((namespace, name))
        text = f"claim {name} ({namespace}) of {_listed(own)}"
        if found is None:
            yield CheckResult(check, Level.ERROR, f"{text} does not exist", "create the PersistentVolumeClaim")
            continue
        phase, modes = fields.text(found, "status", "phase", limit=40), set(fields.texts(found, "spec", "accessModes"))
        if phase != "Bound":
            fix = f"see kubectl --namespace {namespace} describe pvc {name}"
            yield CheckResult(check, Level.ERROR, f"{text} is {phase or 'without a phase'}", fix)
        elif len(own) > 1 and modes and modes <= {"ReadWriteOnce", "ReadWriteOncePod"}:
            text += f" has only {' and '.join(sorted(modes))}: a spare on another node may not be able to mount it"
            yield CheckResult(check, Level.WARNING, text, "use a volume with ReadWriteMany for checkpoints")


# Ports ----------------------------------------------------------------------------------------------------------------


def blocked_ports(check: str, pods: Iterable[Raw], policies: Sequence[Raw]) -> Iterator[CheckResult]:
    """At most one finding for each job. Only the connections between a first pod and the others are checked, in both
    directions: pods of a job have the same policies, unless these select roles.
    """
    jobs: dict[tuple[str, str], list[Raw]] = {}
    for pod in filter(is_of_a_job, pods):
        labels, has_own_network = _labels(pod), not fields.flag(pod, "spec", "hostNetwork")
        if has_own_network and names.LABEL_POOL not in labels:  # spares of a pool do not call each other
            jobs.setdefault((_namespace(pod), labels[names.LABEL_JOB_UID]), []).append(pod)
    for (namespace, _), own in sorted(jobs.items(), key=lambda entry: entry[0]):
        of_namespace = [policy for policy in policies if _namespace(policy) == namespace]
        if not of_namespace or len(own) < 2:
            continue
        one, *others = own
        pairs = [pair for other in others for pair in ((one, other), (other, one))]
        found = next((blocked for pair in pairs if (blocked := _blocked(*pair, of_namespace))), None)
        if found is not None:
            fix = (
                "allow all ports between the pods of a job, for example with networkPolicies.jobs.enabled of the chart"
            )
            yield CheckResult(check, *found, fix)


def _blocked(source: Raw, target: Raw, policies: Sequence[Raw]) -> tuple[Level, str] | None:
    for direction, subject, peer in (("Ingress", target, source), ("Egress", source, target)):
        own = [policy for policy in policies if _applies(policy, direction, subject)]
        if not own:
            continue
        which = f"NetworkPolicy {', '.join(sorted(map(_name, own))[:_NAMED])} ({_namespace(target)})"
        allowed = [ports for policy in own for ports in _allowed(policy, direction, peer, target)]
        if not any(names.COORDINATOR_PORT in ports for ports in allowed):
            text = f"{which} blocks port {names.COORDINATOR_PORT} from pod {_name(source)} to pod {_name(target)}: "
            return Level.ERROR, f"{text}their sidecars cannot reach each other"
        if _ALL_PORTS not in allowed:
            text = f"{which} allows only some ports from pod {_name(source)} to pod {_name(target)}: collectives "
            return Level.WARNING, f"{text}(NCCL, gloo) use any port"
    return None


def _applies(policy: Raw, direction: str, pod: Raw) -> bool:
    """Without policyTypes, a policy is for incoming connections, and for outgoing ones if it has rules for them."""
    kinds = fields.texts(policy, "spec", "policyTypes")
    default = direction == "Ingress" or fields.get(policy, "spec", "egress") is not None
    is_of_direction = direction in kinds if kinds else default
    return is_of_direction and _selects(fields.table(policy, "spec", "podSelector"), _labels(pod))


def _allowed(policy: Raw, direction: str, peer: Raw, target: Raw) -> Iterator[range]:
    """The TCP ports of the target that the policy allows for this peer."""
    rules, peers = ("ingress", "from") if direction == "Ingress" else ("egress", "to")
    for rule in fields.entries(policy, "spec", rules):
        some = list(fields.entries(rule, peers))
        if not some or any(_is_peer(each, peer) for each in some):
            yield from _ports(rule, target)


def _is_peer(peer: Raw, pod: Raw) -> bool:
    if block := fields.table(peer, "ipBlock"):
        return _is_in(fields.text(pod, "status", "podIP"), block)
    if (namespaces := fields.get(peer, "namespaceSelector")) is not None and not _may_select(namespaces, pod):
        return False
    return _selects(fields.table(peer, "podSelector"), _labels(pod))


def _is_in(address: str, block: Raw) -> bool:
    """A pod without an address yet counts as inside."""
    if not address:
        return True
    at = ipaddress.ip_address(address)
    excluded = fields.texts(block, "except")
    return at in _network(fields.text(block, "cidr")) and not any(at in _network(each) for each in excluded)


@cache
def _network(cidr: str) -> ipaddress.IPv4Network | ipaddress.IPv6Network:
    return ipaddress.ip_network(cidr, strict=False)


def _may_select(namespaces: object, pod: Raw) -> bool:
    known = {_NAMESPACE_NAME: _namespace(pod)}
    wanted = fields.words(namespaces, "matchLabels")
    labels = {key: value for key, value in wanted.items() if key in known}
    terms = [term for term in fields.entries(namespaces, "matchExpressions") if fields.text(term, "key") in known]
    return _selects({"matchLabels": labels, "matchExpressions": terms}, known)


def _ports(rule: Raw, target: Raw) -> Iterator[range]:
    some = list(fields.entries(rule, "ports"))
    if not some:
        yield _ALL_PORTS
    for entry in some:
        if fields.text(entry, "protocol") not in ("", "TCP"):
            continue
        port = fields.get(entry, "port")
        if isinstance(port, str):
            port = _named_port(target, port)
            if port is None:
                continue
        first = port if isinstance(port, int) else _ALL_PORTS[0]
        last = _ALL_PORTS[-1] if port is None else fields.number(entry, "endPort") or first
        yield range(first, last + 1)


def _named_port(pod: Raw, name: str) -> int | None:
    of_containers = (*fields.entries(pod, "spec", "initContainers"), *fields.entries(pod, "spec", "containers"))
    ports = (port for container in of_containers for port in fields.entries(container, "ports"))
    return next((fields.number(port, "containerPort") for port in ports if fields.text(port, "name") == name), None)


def _selects(selector: Raw, labels: dict[str, str]) -> bool:
    if any(labels.get(key) != value for key, value in fields.words(selector, "matchLabels").items()):
        return False
    return all(_holds(term, labels) for term in fields.entries(selector, "matchExpressions"))


def _holds(term: Raw, labels: dict[str, str]) -> bool:
    value, values = labels.get(fields.text(term, "key")), fields.texts(term, "values")
    match fields.text(term, "operator"):
        case "In":
            return value in values
        case "NotIn":
            return value not in values
        case "Exists":
            return value is not None
        case _:
            return value is None


# Pods -----------------------------------------------------------------------------------------------------------------


def is_of_a_job(pod: Raw) -> bool:
    return names.LABEL_JOB_UID in _labels(pod) and fields.text(pod, "status", "phase") not in ("Succeeded", "Failed")


def _labels(raw: Raw) -> dict[str, str]:
    return fields.words(raw, "metadata", "labels")


def _namespace(raw: Raw) -> str:
    return fields.text(raw, "metadata", "namespace", limit=253)


def _name(raw: Raw) -> str:
    return fields.text(raw, "metadata", "name", limit=253)


def _listed(pods: Sequence[Raw]) -> str:
    more = f" and {len(pods) - _NAMED} more" if len(pods) > _NAMED else ""
    return f"pods {', '.join(sorted(map(_name, pods))[:_NAMED])}{more}"
