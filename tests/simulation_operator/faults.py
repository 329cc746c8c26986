"""The faults of one run and their times: drawn from the seed before the run."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count

from tests.simulation_operator.api_server import Raw
from tests.simulation_operator.client import Process
from tests.simulation_operator.rules import Rule
from tests.simulation_operator.training import SUCCEEDED
from tests.simulation_operator.world import World
from tests.unit.operator.given import TEMPLATE
from understudy_operator.observe.store import Kind
from understudy_operator.runtime.api import ApiError
from understudy_protocol import pod as names

FAULTS_S = 45.0  # they begin within this time
LASTS_S = 35.0  # the longest duration of each
MALFORMED = "malformed objects"


@dataclass(frozen=True)
class Fault:
    at: float
    description: str
    lasts_s: float
    draw: float  # decides whom it hits


@dataclass(frozen=True)
class Setup:
    nodes: int
    replicas: int
    jobs: tuple[tuple[int, int], ...]  # actives and spares of each job
    slow: float
    throttled: float
    failed: float
    unanswered: float
    event_lost: float
    event_twice: float
    event_late: float
    pool: int = 0  # spares of the pool that all jobs name; 0: no pool
    room: int | None = None  # pods that fit on a node
    lease: bool = True
    warm: bool = False  # the pool's spares have a launcher
    claim_unanswered: float = 0.0
    aside: bool = False  # each job has a Job outside of its world
    list_unanswered: float = 0.0


def draw_setup(rng: random.Random) -> Setup:
    jobs = tuple((rng.randint(1, 4), rng.randint(0, 2)) for _ in range(rng.choice([1, 1, 2])))

    def likely(most: float) -> float:
        return rng.choice([0.0, rng.uniform(0.0, most)])

    return Setup(
        rng.randint(2, 5),
        rng.choice([1, 2, 2]),
        jobs,
        slow=likely(0.3),
        throttled=likely(0.1),
        failed=likely(0.15),
        unanswered=likely(0.3),
        event_lost=likely(0.3),
        event_twice=likely(0.3),
        event_late=likely(0.5),
    )


def draw_faults(rng: random.Random) -> list[Fault]:
    kinds = list(STRIKES)
    count = rng.randint(0, 8)
    drawn = (
        Fault(rng.uniform(0.0, FAULTS_S), rng.choice(kinds), rng.uniform(1.0, LASTS_S), rng.random())
        for _ in range(count)
    )
    return sorted(drawn, key=lambda fault: fault.at)


def draw_pool_setup(rng: random.Random) -> Setup:
    """Two or three jobs that name one pool, mostly without spares of their own."""
    jobs = tuple((rng.randint(1, 3), rng.choice([0, 0, 1])) for _ in range(rng.choice([2, 2, 3])))
    nodes, pool = rng.randint(4, 6), rng.randint(1, 2)
    pods = sum(actives + spares for actives, spares in jobs) + pool
    room = rng.choice([None, -(-(pods + 1) // (nodes - 1)) + 1])
    return replace(draw_setup(rng), nodes=nodes, jobs=jobs, pool=pool, room=room, replicas=rng.choice([1, 2, 2]))


def draw_pool_faults(rng: random.Random) -> list[Fault]:
    """Many faults that cause claims, and some while these are carried out."""
    strikes = rng.choices([*POOL_STRIKES, *STRIKES], [3, 8, 1, 1, 1, *([0.5] * len(STRIKES))], k=rng.randint(1, 7))
    drawn = [
        Fault(rng.uniform(6.0, FAULTS_S), description, rng.uniform(1.0, LASTS_S), rng.random())
        for description in strikes
    ]
    for _ in range(rng.randint(1, 2)):
        at = rng.uniform(8.0, FAULTS_S)
        drawn += [Fault(at, "kill at claim", 0.0, rng.random()), Fault(at + 0.1, "lose pods", 0.0, rng.random())]
    return sorted(drawn, key=lambda fault: fault.at)


def draw_malformed(rng: random.Random) -> list[Fault]:
    """In one case of three a tenant creates objects that cannot be read."""
    return [Fault(rng.uniform(0.0, FAULTS_S), MALFORMED, rng.uniform(1.0, LASTS_S), 0.0)] if rng.random() < 0.3 else []


def draw_changes(rng: random.Random) -> list[Fault]:
    """In one case of three a user suspends a job, or copies one of its Jobs."""
    if rng.random() < 0.7:
        return []
    description = rng.choice(list(CHANGES))
    return [Fault(rng.uniform(0.0, FAULTS_S), description, rng.uniform(1.0, LASTS_S), rng.random())]


def schedule(world: World, faults: tuple[Fault, ...]) -> float:
    """The time when all of them are over."""
    is_done = 0.0
    for fault in faults:
        world.loop.call_later(fault.at, _strike, world, fault)
        is_done = max(is_done, fault.at + fault.lasts_s)
    return is_done


def _strike(world: World, fault: Fault) -> None:
    world.log(f"fault: {fault.description} for {fault.lasts_s:.1f} s")
    (STRIKES | POOL_STRIKES | CHANGES | {MALFORMED: _create_malformed})[fault.description](world, fault)


def _later(world: World, fault: Fault, do: Callable[[], object]) -> None:
    world.loop.call_later(fault.lasts_s, do)


def _a_process(world: World, fault: Fault) -> Process | None:
    """A process: in most cases the leader."""
    alive = world.alive()
    leaders = [process for process in alive if process.operator is not None and process.operator.leads()]
    among = leaders if leaders and fault.draw < 0.7 else alive
    return among[int(fault.draw * 1000) % len(among)] if among else None


def _kill(world: World, fault: Fault) -> None:
    if process := _a_process(world, fault):
        world.kill(process)
        _later(world, fault, lambda: world.start_replica(process.name.rpartition(".")[0]))


def _stop(world: World, fault: Fault) -> None:
    if process := _a_process(world, fault):

        async def stop() -> None:
            await world.stop(process)
            world.start_replica(process.name.rpartition(".")[0])

        world.background(stop())


def _cut(world: World, fault: Fault) -> None:
    if process := _a_process(world, fault):
        process.cut_until = max(process.cut_until, world.loop.time() + fault.lasts_s)
        _later(world, fault, process.restart_watches)


def _away(world: World, fault: Fault) -> None:
    trouble = world.client_faults
    trouble.away_until = max(trouble.away_until, world.loop.time() + fault.lasts_s)

    def back() -> None:
        for process in world.alive():
            process.restart_watches()

    _later(world, fault, back)


def _gone_410(world: World, fault: Fault) -> None:
    """A watch misses all events until it restarts."""
    if process := _a_process(world, fault):
        world.unwatch(process)
        _later(world, fault, lambda: world.watch(process))


def _a_pod(world: World, fault: Fault) -> Raw | None:
    pods = world.server.of("pods")
    return pods[int(fault.draw * 1000) % len(pods)] if pods else None


def _crash_pod(world: World, fault: Fault) -> None:
    if pod := _a_pod(world, fault):
        world.cluster.end(pod, None)


def _lose_line(world: World, fault: Fault) -> None:
    """The coordinator loses a member, which comes back: perhaps because its sidecar was restarted. In most cases it is
    not replaced meanwhile, because a quota is exhausted.
    """
    if fault.draw < 0.8:
        _quota(world, replace(fault, draw=0.0))
    for training in list(world.trainings.values()):
        with_ranks = [
            uid for uid in training.rank_holders.values() if training.has_rank(uid) and uid != training.coordinator_uid
        ]
        if not with_ranks:
            continue
        uid = with_ranks[int(fault.draw * 1000) % len(with_ranks)]
        (pod,) = [raw for raw in world.server.of("pods") if raw["metadata"]["uid"] == uid]
        training.lose_line(uid)
        restarted = int(fault.draw * 100) % 2 == 0
        if restarted:
            _later(world, fault, partial(world.cluster.restart_sidecar, pod))
        _later(world, fault, partial(training.find_line, uid, restarted=restarted))


def _delete_pod(world: World, fault: Fault) -> None:
    if pod := _a_pod(world, fault):
        path = f"/api/v1/namespaces/{pod['metadata']['namespace']}/pods/{pod['metadata']['name']}"
        with suppress(ApiError):  # a policy may forbid it
            world.server.handle("DELETE", path, {}, {})


def _delete_service(world: World, fault: Fault) -> None:
    services = world.server.of("services")
    if services:
        world.server.remove("services", services[int(fault.draw * 1000) % len(services)])


def _delete_secret(world: World, fault: Fault) -> None:
    if secrets := world.server.of("secrets"):
        world.server.remove("secrets", secrets[int(fault.draw * 1000) % len(secrets)])


def _node(world: World, fault: Fault) -> None:
    up = [node for node in world.cluster.nodes if node not in world.cluster.down]
    if len(up) > 1:
        node = up[int(fault.draw * 1000) % len(up)]
        world.cluster.power_off(node)
        _later(world, fault, lambda: world.cluster.power_on(node))


def _quota(world: World, fault: Fault) -> None:
    most = len(world.server.of("pods")) + int(fault.draw * 3)

    def refuse(body: Raw) -> ApiError | None:
        """Secrets have their own quota, which is exhausted."""
        full = body.get("kind") == "Pod" and len(world.server.of("pods")) >= most
        full = full or body.get("kind") == "Secret"
        return ApiError(403, "Forbidden", f"{body['kind']} is forbidden: exceeded quota: q") if full else None

    world.server.refuse = refuse
    _later(world, fault, world.accept_all)


def _webhook(world: World, fault: Fault) -> None:
    def refuse(body: Raw) -> ApiError | None:
        if body.get("kind") not in ("Pod", "Service"):
            return None
        words = f'Internal error occurred: failed calling webhook "v": timeout (request {next(requests):x}-0)'
        return ApiError(500, "InternalError", words)

    requests = count()
    world.server.refuse = refuse
    _later(world, fault, world.accept_all)


def _policy(world: World, fault: Fault) -> None:
    """Changes and deletions of pods are forbidden."""
    requests = count()

    def forbid() -> ApiError:
        words = f"ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no (request {next(requests):x}-0)"
        return ApiError(422, "Invalid", words)

    world.server.forbid = forbid
    _later(world, fault, world.accept_all)


def _a_job(world: World, fault: Fault) -> str:
    return f"job-{int(fault.draw * 1000) % 2}"


def _delete_job(world: World, fault: Fault) -> None:
    world.delete(_a_job(world, fault))


def _replace_job(world: World, fault: Fault) -> None:
    name = _a_job(world, fault)
    if world.job(name):
        world.delete(name)
        world.apply(name, 1 + int(fault.draw * 100) % 3, int(fault.draw * 10) % 2)


def _spares(world: World, fault: Fault) -> None:
    world.change_spares(_a_job(world, fault), int(fault.draw * 100) % 4)


def _finish(world: World, fault: Fault) -> None:
    for training in list(world.trainings.values())[:1]:
        training.ends_at = min(training.ends_at, world.loop.time())


def _kill_at_claim(world: World, fault: Fault) -> None:
    world.kill_at_claim = 1 + int(fault.draw * 1000) % 5


def _lose_pods(world: World, fault: Fault) -> None:
    """One pod of each job, at the same moment."""
    for training in list(world.trainings.values()):
        with_ranks = sorted(filter(training.has_rank, training.rank_holders.values()))
        for pod in world.server.of("pods"):
            if with_ranks and pod["metadata"]["uid"] == with_ranks[int(fault.draw * 1000) % len(with_ranks)]:
                world.cluster.end(pod, None)


def _roll_pool(world: World, fault: Fault) -> None:
    container: Raw = {"name": "hold", "image": f"example.com/pause:{fault.draw}"}
    if world.warm:  # another image, of which no spare can be claimed Warm; or another variable
        (trainer,) = TEMPLATE["spec"]["containers"]
        env = [{"name": "A", "value": str(fault.draw)}]
        container = {**trainer, "image": container["image"]} if fault.draw < 0.3 else {**trainer, "env": env}
    world.change_pool("shared", template={"spec": {"containers": [container]}})


def _scale_pool(world: World, fault: Fault) -> None:
    world.change_pool("shared", replicas=int(fault.draw * 1000) % 3)


def _replace_pool(world: World, fault: Fault) -> None:
    world.delete_pool("shared")
    if fault.draw < 0.7:
        world.apply_pool("shared", 1)


def _create_malformed(world: World, fault: Fault) -> None:
    """The watches report malformed objects with a job's labels, and later their deletion. No list has them."""
    uid = next(iter(world.trainings), "uid")
    labels = {names.LABEL_JOB: "job-0", names.LABEL_JOB_UID: uid}
    owners = [{"uid": uid, "controller": True}]
    metadata: Raw = {"namespace": "research", "labels": labels, "ownerReferences": owners, "resourceVersion": "1"}
    objects: list[tuple[Kind, Raw]] = [
        (Kind.POD, {"spec": {"containers": 3}}),
        (Kind.POD, {"spec": {}, "metadata": {"creationTimestamp": "soon"}}),
        (Kind.POD, {"spec": {}, "metadata": {"labels": {**labels, names.LABEL_JOB: "a.b"}, "annotations": []}}),
        (Kind.CHILD, {"spec": {"parallelism": "many"}}),
        (Kind.NODE, {"status": {"conditions": "none"}}),
        (Kind.JOB, {"spec": {"replicatedJobs": "none"}, "status": {"round": "three", "recoveries": [{}]}}),
        (Kind.POOL, {"spec": {}}),
        (Kind.INJECTED, {"spec": {"target": 3}}),
    ]

    def report(event_type: str) -> None:
        for process in world.alive():
            for number, (kind, changes) in enumerate(objects):
                named = {"name": f"malformed-{number}", "uid": f"malformed-{number}", **changes.get("metadata", {})}
                raw = {**changes, "metadata": {**metadata, **named}}
                try:
                    process._deliver_event(kind, event_type, copy.deepcopy(raw))
                except Exception as error:  # noqa: BLE001 (whatever it is, it would end a watch)
                    world.violate(
                        Rule.MALFORMED_OBJECTS_ARE_READ, f"{process.name} fails over malformed {kind.value}: {error!r}"
                    )

    report("ADDED")
    _later(world, fault, lambda: report("DELETED"))


def _suspend(world: World, fault: Fault) -> None:
    name = _a_job(world, fault)
    world.change(name, lambda spec: spec.update(suspend=True))
    _later(world, fault, lambda: world.change(name, lambda spec: spec.update(suspend=False)))


def _finish_and_suspend(world: World, fault: Fault) -> None:
    """The coordinator has closed the rendezvous, and no operator has received the close yet."""
    job = world.job(_a_job(world, fault))
    training = world.trainings.get(job["metadata"]["uid"]) if job else None
    whole = training is not None and len(training.rank_holders) == training.actives
    if (
        training is not None
        and training.coordinator_uid
        and whole
        and all(map(training.has_rank, training.rank_holders.values()))
    ):
        training.closed = SUCCEEDED
    _suspend(world, fault)


def _change_while_suspended(world: World, fault: Fault) -> None:
    """The Job outside of the world has another node selector once the job is resumed. The webhook rejects the change of
    a job that is not suspended: it may have been replaced meanwhile.
    """
    name = _a_job(world, fault)

    def change(spec: Raw) -> None:
        for entry in spec["replicatedJobs"]:
            if entry["name"] == "aside" and spec.get("suspend"):
                entry["template"]["spec"]["template"]["spec"]["nodeSelector"] = {"zone": "b"}

    _suspend(world, fault)
    _later(world, replace(fault, lasts_s=0.7 * fault.lasts_s), lambda: world.change(name, change))


def _copy_child(world: World, fault: Fault) -> None:
    """A user copies the YAML of a Job, labels included, for debugging. The copy fails, and has no owner."""
    children = [job for job in world.server.of("jobs") if job["metadata"].get("ownerReferences")]
    if not children:
        return
    child = children[int(fault.draw * 1000) % len(children)]
    own = ("uid", "resourceVersion", "creationTimestamp", "ownerReferences")
    metadata = {name: value for name, value in child["metadata"].items() if name not in own}
    failed = {"type": "Failed", "status": "True", "reason": "BackoffLimitExceeded", "message": "exit code 1"}
    status = {"failed": 1, "conditions": [failed | {"lastTransitionTime": world.server.timestamp()}]}
    world.server.put("jobs", {**child, "metadata": {**metadata, "name": "my-debug"}, "status": status})


CHANGES: dict[str, Callable[[World, Fault], None]] = {
    "suspend": _suspend,
    "finish and suspend": _finish_and_suspend,
    "change while suspended": _change_while_suspended,
    "copy child": _copy_child,
}
POOL_STRIKES: dict[str, Callable[[World, Fault], None]] = {
    "kill at claim": _kill_at_claim,
    "lose pods": _lose_pods,
    "roll pool": _roll_pool,
    "scale pool": _scale_pool,
    "replace pool": _replace_pool,
}
STRIKES: dict[str, Callable[[World, Fault], None]] = {
    "kill": _kill,
    "stop": _stop,
    "cut": _cut,
    "away": _away,
    "gone": _gone_410,
    "crash pod": _crash_pod,
    "lose line": _lose_line,
    "delete pod": _delete_pod,
    "delete service": _delete_service,
    "delete secret": _delete_secret,
    "node": _node,
    "quota": _quota,
    "webhook": _webhook,
    "policy": _policy,
    "delete job": _delete_job,
    "replace job": _replace_job,
    "spares": _spares,
    "finish": _finish,
}
