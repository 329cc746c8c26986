"""Whether a job can use a pool's spare as it is, and the program that its workers would run in it.

Rules: the same builder makes the job's own spare and the pool's, and their specs have to be equal, except for the
hostname, the volume with the keys, the ports with hostNetwork, and the trainer's command, args and plain variables: the
operator sends these (TakeOver), and nothing else of a pod can change. Only a kubelet expands a variable $(NAME) in
them. The template's annotations have to be equal, too: webhooks and networks read them when a pod is created. The claim
writes labels. Variables that configure the launcher and the sidecar have to equal the pool's.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from understudy_operator.plan.capacity.gang import SCHEDULERS_MARKS, unmark
from understudy_operator.plan.facts.host_ports import without_host_ports
from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.keys import PLACEMENT
from understudy_operator.plan.facts.pool_facts import Pool
from understudy_operator.plan.facts.spec import SharedMemory
from understudy_operator.plan.facts.trainer import AUTO, TORCHRUN, WRAP, words_of
from understudy_operator.plan.manifests.pods import command_of, pod_manifest, trainer_of
from understudy_operator.plan.manifests.warm_spare_pods import launcher_of, plain_variables, warm_spec
from understudy_protocol import pod as names
from understudy_protocol.command_words import calls_torchrun
from understudy_protocol.launcher import TakeOver

_OWN_VOLUMES = (names.POD_VOLUME, names.STATE_VOLUME)
_EXPANDS = "$("
Raw = Mapping[str, Any]


def difference(job: Job, pool: Pool) -> str:
    """The first field of the job that differs from the pool, and how; "" if the job can use the pool's spares."""
    return next(_differences(job, pool), "")


def take_over(job: Job) -> TakeOver:
    """The message for the launcher of a claimed spare."""
    trainer = trainer_of(job_spare_manifest(job)["spec"], job.world.container)
    return TakeOver(tuple(_words(trainer)), plain_variables(trainer))


def job_spare_manifest(job: Job) -> dict[str, Any]:
    """The manifest of a spare of the job's own, without the marks of queues and gang schedulers."""
    manifest = pod_manifest(job, index=None, serial="", facts="", sidecar_image="")
    unmark(manifest)
    if job.world.spare_priority_class:
        manifest["spec"]["priorityClassName"] = job.world.spare_priority_class
    return manifest


def _differences(job: Job, pool: Pool) -> Iterator[str]:
    for field, job_value, pool_value in _settings(job, pool):
        if job_value != pool_value:
            yield f"{field} is {job_value!r}, and {pool_value!r} in the pool"
    manifest = job_spare_manifest(job)
    job_value, pool_value = manifest["spec"], warm_spec(pool, sidecar_image="", secret="")
    trainer, spares = trainer_of(job_value, job.world.container), trainer_of(pool_value, launcher_of(pool).container)
    if trainer["name"] != spares["name"]:
        yield f"launcher.container is {trainer['name']}, and {spares['name']} in the pool"
        return
    settings = (_words(trainer), plain_variables(trainer))
    if settings != (_words(spares), plain_variables(spares)) and _EXPANDS in str(settings):
        yield "the trainer's command, args or variables use $(NAME), which only a kubelet expands"
    yield from _spec_differences(_compared(job_value, trainer), _compared(pool_value, spares), "spec")
    yield from _spec_differences(_annotations(job), _annotations_of_pool(pool), "annotations")


def _settings(job: Job, pool: Pool) -> Iterator[tuple[str, Any, Any]]:
    world, launcher = job.world, launcher_of(pool)
    yield "launcher.mode", _mode(job), WRAP
    yield "launcher.nprocPerNode", world.nproc_per_node, launcher.nproc_per_node
    yield "launcher.forkServer", world.zygote, launcher.zygote
    yield "launcher.preload", _listed(world.preload), _listed(launcher.preload)
    yield "launcher.python", world.python, ""
    yield "launcher.logPrefix", world.log_prefix, True
    yield "launcher.slowRankPercent", world.slow_rank_percent, 150
    yield "launcher.sharedMemory", _memory(world.shared_memory), _memory(launcher.shared_memory)
    yield "termination.onSigterm", world.on_sigterm, "Auto"
    yield "faults.nodeFile", world.nologin_path, ""
    yield "recovery.workerGracePeriod", _grace(world.worker_grace_period_s), _grace(None)
    yield "faults.hang.stepTimeout", f"{world.step_timeout_s:g}s", "0s"
    yield "faults.hang.startTimeout", f"{world.start_timeout_s:g}s", "0s"
    yield "snapshots", "set" if world.snapshot_bytes else "", ""
    yield "rollouts", "set" if job.spec.rollouts is not None else "", ""


def _mode(job: Job) -> str:
    """Of an Auto job, Torchrun if its command calls torchrun: that starts before a spare can be ready."""
    if job.world.mode != AUTO:
        return job.world.mode
    trainer = trainer_of(job.world.spare_group.pod_template["spec"], job.world.container)
    return TORCHRUN if calls_torchrun(words_of(trainer)) else WRAP


def _listed(modules: tuple[str, ...] | None) -> str:
    return "the default" if modules is None else ",".join(modules)


def _memory(memory: SharedMemory | None) -> str:
    if memory is None:
        return "not set"
    return f"{memory.size} on disk" if memory.on_disk else memory.size


def _grace(seconds: float | None) -> str:
    return "the default" if seconds is None else f"{seconds:g}s"


def _words(trainer: Raw) -> list[str]:
    """The user's command with its arguments, without the launcher's entry script in front of it."""
    return [*command_of(trainer), *trainer.get("args", ())]


def _compared(spec: Raw, trainer: Raw) -> dict[str, Any]:
    kept = {name: value for name, value in spec.items() if name not in ("hostname", "subdomain")}
    kept["volumes"] = [volume for volume in spec.get("volumes", ()) if volume["name"] not in _OWN_VOLUMES]
    kept["initContainers"] = list(spec.get("initContainers", ()))[1:]  # the first is the sidecar
    kept["containers"] = [_without_settable(one) if one is trainer else one for one in spec["containers"]]
    return kept


def _without_settable(trainer: Raw) -> dict[str, Any]:
    """The trainer without the fields that TakeOver replaces."""
    kept = {name: value for name, value in trainer.items() if name not in ("command", "args")}
    kept["env"] = [variable for variable in trainer.get("env", ()) if "valueFrom" in variable]
    kept["ports"] = without_host_ports(trainer)
    return kept


def _annotations(job: Job) -> dict[str, str]:
    group = job.world.spare_group
    annotations = {
        **group.job_metadata.get("annotations", {}),
        **group.pod_template.get("metadata", {}).get("annotations", {}),
    }
    return {name: value for name, value in annotations.items() if name not in (*SCHEDULERS_MARKS, *PLACEMENT)}


def _annotations_of_pool(pool: Pool) -> dict[str, str]:
    annotations = pool.template.get("metadata", {}).get("annotations", {})
    return {name: value for name, value in annotations.items() if name not in PLACEMENT}


def _spec_differences(job_value: Any, pool_value: Any, path: str) -> Iterator[str]:
    """Where they differ. An empty value equals an unset one; 0 and false do not, because they are nowhere defaults."""
    if isinstance(job_value, Mapping) and isinstance(pool_value, Mapping):
        for name in sorted(job_value.keys() | pool_value.keys()):
            yield from _spec_differences(job_value.get(name), pool_value.get(name), f"{path}.{name}")
    elif isinstance(job_value, list) and isinstance(pool_value, list) and len(job_value) == len(pool_value):
        for number, (one, other) in enumerate(zip(job_value, pool_value, strict=True)):
            yield from _spec_differences(one, other, f"{path}[{number}]")
    elif (
        job_value != pool_value
        and not (_is_empty(job_value) and _is_empty(pool_value))
        and not _same_quantity(job_value, pool_value)
    ):
        yield f"{path} is {_short(job_value)}, and {_short(pool_value)} in the pool"


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, Mapping | list | str) and not value)


def _same_quantity(one: Any, other: Any) -> bool:
    """8 is "8"."""
    return {type(one), type(other)} == {int, str} and str(one) == str(other)


def _short(value: Any) -> str:
    if isinstance(value, Mapping):
        return "set" if value else "not set"
    if isinstance(value, list):
        return f"a list of length {len(value)}"
    return "not set" if value is None else repr(value)[:80]
