"""A Job, JobSet or PyTorchJob with injected pods -> the content of its InjectedJob: which pods train, and their order.

Rules: only templates with the label count. They train as one, so they have the same settings in their annotations, and
all of their pods run at once. Ranks follow the order of the templates in the object (a PyTorchJob's Master first).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from understudy_operator.plan.facts.launcher_choice import MOST_MEMBERS
from understudy_operator.plan.facts.malformed import number_in
from understudy_operator.plan.facts.trainer import describe_own_ranks, restarts_of_torchrun, workers_per_pod
from understudy_operator.plan.injection.owner import PATHS, Owner
from understudy_operator.plan.injection.settings import (
    NONE,
    PREFIX,
    InjectionSettings,
    Objection,
    actives_of,
    read_injection_settings,
    settings_of,
    wants_injection,
)
from understudy_operator.plan.intents import Event
from understudy_operator.plan.manifests.pods import command_of
from understudy_protocol import pod as names
from understudy_protocol.command_words import NPROC_VARIABLE
from understudy_protocol.pod import PodGroup

Raw = Mapping[str, Any]
#: Errors raised while reading a Job, a JobSet or a PyTorchJob with a field that its own controller would not accept.
UNREADABLE = (KeyError, TypeError, ValueError, AttributeError)
REASON_CHARACTERS = 500
REPLICA_TYPES = ("Master", "Worker")
#: Values of the label with which a user may rule out injection.
NOT_INJECTED = ("disabled", "false", "")


@dataclass(frozen=True)
class Template:
    """A template of pods that are injected."""

    name: str  # of its replicatedJob or replica type, as in Place.group
    jobs: int
    pods_per_job: int
    template: Raw

    @property
    def annotations(self) -> Mapping[str, str]:
        found: Mapping[str, str] = self.template.get("metadata", {}).get("annotations") or {}
        return found


@dataclass(frozen=True)
class Target:
    kind: str
    templates: tuple[Template, ...]

    @property
    def pods(self) -> int:
        return sum(template.jobs * template.pods_per_job for template in self.templates)

    @property
    def groups(self) -> tuple[PodGroup, ...]:
        groups, first = [], 0
        for template in self.templates:
            groups.append(PodGroup(template.name, first, template.pods_per_job))
            first += template.jobs * template.pods_per_job
        return tuple(groups)


def read_target(kind: str, raw: Raw) -> Target:
    """Raises Objection."""
    templates = tuple(_templates(kind, raw.get("spec", {})))
    settings_of_templates = [settings_of(template.annotations) for template in templates]
    if any(settings != settings_of_templates[0] for settings in settings_of_templates):
        listed = ", ".join(template.name for template in templates)
        raise Objection(
            f"the pod templates {listed} train as one, but their annotations {PREFIX}… differ: give them the same "
            f"annotations, or remove the label {names.LABEL_INJECT} from the templates that do not train"
        )
    if settings_of_templates:
        _check_workers(kind, raw, templates, read_injection_settings(templates[0].annotations))
    return Target(kind, templates)


def _check_workers(kind: str, raw: Raw, templates: Sequence[Template], settings: InjectionSettings) -> None:
    """All pods need the same number of workers: the ranks of a pod follow from it. Raises Objection."""
    if settings.nproc_per_node or settings.launcher == NONE:
        return
    controllers = [{"name": NPROC_VARIABLE, "value": str(raw.get("spec", {}).get("nprocPerNode", ""))}]
    workers = [_workers(template, settings, controllers if kind == "PyTorchJob" else []) for template in templates]
    if len(set(workers)) > 1:
        listed = ", ".join(f"{template.name}: {count}" for template, count in zip(templates, workers, strict=True))
        raise Objection(
            f"the pod templates train as one, but their pods have different numbers of workers ({listed}), which are "
            f"torchrun's --nproc-per-node or the limits of devices: set annotation {PREFIX}nproc-per-node to one number"
        )


def _workers(template: Template, settings: InjectionSettings, variables: Sequence[Raw]) -> int:
    """variables: that the job's controller adds to each pod."""
    containers = (template.template.get("spec") or {}).get("containers") or ()
    trainer: Raw = next((x for x in containers if settings.container in ("", x.get("name"))), {})
    return workers_per_pod({**trainer, "env": [*(trainer.get("env") or ()), *variables]})


def spec_of(target: Target, owner: Owner, pod: Raw) -> dict[str, Any]:
    """The spec of the InjectedJob, from one of its injected pods. Raises Objection."""
    _check_pods(target)
    annotations = pod["metadata"].get("annotations", {})
    settings = read_injection_settings(annotations)
    nproc = read_nproc(pod)
    actives = actives_of(settings, target.pods)
    if problem := describe_own_ranks(_trainer_of(pod), settings.launcher, actives * nproc):
        raise Objection(problem)
    return {
        "target": {"apiVersion": PATHS[owner.kind][0], "kind": owner.kind, "name": owner.name, "uid": owner.uid},
        "attempt": owner.attempt,
        "pods": target.pods,
        "members": actives,
        "nprocPerNode": nproc,
        "terminationGracePeriodSeconds": int(pod["spec"].get("terminationGracePeriodSeconds") or 30),
        "podGroups": [{"name": x.name, "firstGroupRank": x.first, "podsPerJob": x.pods_per_job} for x in target.groups],
        "annotations": {**_settings_of_torchrun(pod), **settings_of(annotations)},
        **({"hostNetwork": True} if _has_host_network(target, pod) else {}),
    }


def plan_injected_job(namespace: str, owner: Owner, pod: Raw, target: Raw, unreadable: str) -> Raw | Event:
    """The InjectedJob to create; an event if the target cannot train as one. target: the raw owner of the pod.

    unreadable: why the API server's answer cannot be decoded; "" if it can.
    """
    try:
        if unreadable:
            raise Objection(unreadable)
        return manifest_of(namespace, owner, spec_of(read_target(owner.kind, target), owner, pod))
    except (Objection, *UNREADABLE) as objection:
        reason = (
            str(objection)
            if isinstance(objection, Objection)
            else f"it cannot be read: {objection!r}"[:REASON_CHARACTERS]
        )
        return Event("Warning", "NotInjected", reason, owner.uid)


def _has_host_network(target: Target, pod: Raw) -> bool:
    """Whether the pods of the job have hostNetwork. Raises Objection."""
    with_it = [x.name for x in target.templates if (x.template.get("spec") or {}).get("hostNetwork")]
    if with_it and len(with_it) < len(target.templates):
        raise Objection(
            f"the pod templates {', '.join(with_it)} have hostNetwork, and the others that train with them do not: set "
            "it in all or in none of them"
        )
    sidecars = (x for x in pod["spec"].get("initContainers") or () if x.get("name") == names.SIDECAR_CONTAINER)
    return any(variable.get("name") == names.ENV_PORT for x in sidecars for variable in x.get("env") or ())


def _trainer_of(pod: Raw) -> Raw:
    """The trainer container of an injected pod, with the command that the user wrote."""
    name = pod["metadata"].get("annotations", {}).get(names.ANNOTATION_TRAINER_CONTAINER, "")
    trainer: Raw = next((x for x in pod["spec"].get("containers", ()) if x.get("name") == name), {})
    return {"command": command_of(trainer), "args": trainer.get("args")}


def _settings_of_torchrun(pod: Raw) -> dict[str, str]:
    """Settings that the command of an injected pod implies."""
    restarts = restarts_of_torchrun(_trainer_of(pod))
    return {} if restarts is None else {"max-restarts": str(restarts)}


def manifest_of(namespace: str, owner: Owner, spec: Raw) -> dict[str, Any]:
    """The InjectedJob, which is deleted with its target. Raises Objection."""
    target = spec["target"]
    if spec["members"] < 1:
        raise Objection(
            f"no pod of {target['kind']} {target['name']} trains any more, but injected pods exist: restore the label "
            f"{names.LABEL_INJECT} and the replicas, or delete the pods"
        )
    reference = {**target, "controller": False, "blockOwnerDeletion": False}
    return {
        "apiVersion": f"{names.GROUP}/v1alpha1",
        "kind": "InjectedJob",
        "metadata": {"name": owner.group, "namespace": namespace, "ownerReferences": [reference]},
        "spec": spec,
    }


def read_nproc(pod: Raw) -> int:
    """Workers of an injected pod, from its trainer's variable; 0 if it has no launcher. Raises Objection."""
    for container in pod["spec"].get("containers", ()):
        for variable in container.get("env", ()):
            if variable.get("name") == names.ENV_NPROC:
                nproc = number_in(variable.get("value"))
                if not nproc:
                    raise Objection(
                        f"the variable {names.ENV_NPROC} of container {container.get('name')} is "
                        f"{variable.get('value')!r}, but the injection webhook writes a number, 1 or more: remove it "
                        "from the pod template, and delete the pod"
                    )
                return nproc
    return 0


def _check_pods(target: Target) -> None:
    if any(template.jobs < 0 or template.pods_per_job < 0 for template in target.templates):
        raise Objection("replicas and parallelism have to be 0 or more: correct them")
    if target.pods > MOST_MEMBERS:
        raise Objection(
            f"the pod templates with the label {names.LABEL_INJECT} create {target.pods} pods, but at most "
            f"{MOST_MEMBERS} can train as one: lower replicas or parallelism"
        )


def _templates(kind: str, spec: Raw) -> Iterator[Template]:
    if kind == "Job":
        yield from _of_job("pods", 1, spec, "spec")
    elif kind == "JobSet":
        for number, entry in enumerate(spec.get("replicatedJobs", ())):
            path = f"spec.replicatedJobs[{number}].template.spec"
            yield from _of_job(entry["name"], int(entry.get("replicas", 1)), entry["template"].get("spec", {}), path)
    elif kind == "PyTorchJob":
        replicas = spec.get("pytorchReplicaSpecs", {})
        for name in REPLICA_TYPES:
            entry = replicas.get(name, {})
            if wants_injection(entry.get("template", {}).get("metadata") or {}):
                yield Template(name.lower(), 1, int(entry.get("replicas", 1)), entry["template"])


def check_labels(kind: str, raw: Raw) -> None:
    """Raises Objection if a template has a label that neither asks for injection nor rules it out."""
    for template in _pod_templates(kind, raw.get("spec", {})):
        label = ((template.get("metadata") or {}).get("labels") or {}).get(names.LABEL_INJECT, "")
        if not wants_injection(template.get("metadata") or {}) and label not in NOT_INJECTED:
            raise Objection(
                f"label {names.LABEL_INJECT} is {label!r}, so no pod would be injected: set it to "
                f"{names.INJECTION_ENABLED}, or to {NOT_INJECTED[0]}"
            )


def _pod_templates(kind: str, spec: Raw) -> list[Raw]:
    if kind == "Job":
        return [spec.get("template", {})]
    if kind == "JobSet":
        return [entry["template"].get("spec", {}).get("template", {}) for entry in spec.get("replicatedJobs", ())]
    return [replica.get("template", {}) for replica in spec.get("pytorchReplicaSpecs", {}).values()]


def _of_job(name: str, jobs: int, spec: Raw, path: str) -> Iterator[Template]:
    if not wants_injection(spec.get("template", {}).get("metadata") or {}):
        return
    pods = int(spec.get("parallelism", 1))
    # A JobSet fills in Indexed by itself; a Job's own default is NonIndexed.
    if spec.get("completionMode", "NonIndexed" if path == "spec" else "Indexed") != "Indexed":
        raise Objection(
            f"{path}.completionMode has to be Indexed, because each pod of a training has its own ranks: set it, and "
            "set completions to parallelism"
        )
    if int(spec.get("completions", pods)) != pods:
        raise Objection(
            f"{path}.completions is {spec['completions']} and parallelism {pods}, but all pods of a training run at "
            "the same time: set both to the same number"
        )
    if spec.get("backoffLimitPerIndex") is not None:
        raise Objection(
            f"{path}.backoffLimitPerIndex ends an index, and the training with it, after that many lost pods: remove it"
        )
    _check_failure_policy(spec, path)
    yield Template(name, jobs, pods, spec["template"])


def _check_failure_policy(spec: Raw, path: str) -> None:
    """Raises Objection if an exit code of one pod ends the training."""
    if settings_of((spec["template"].get("metadata") or {}).get("annotations") or {}).get("launcher") == NONE:
        return
    for number, rule in enumerate((spec.get("podFailurePolicy") or {}).get("rules") or ()):
        if rule.get("action") == "FailJob" and rule.get("onExitCodes"):
            raise Objection(
                f"{path}.podFailurePolicy.rules[{number}] fails the Job at an exit code of one pod, but the training "
                "recovers from lost pods, and their exit codes may be those of the launcher or the sidecar: remove the "
                f"rule. Annotations {PREFIX}max-restarts and {PREFIX}max-identical-failures limit failures of the "
                "script"
            )
