"""The running operator: the objects that it creates for a TrainingJob, its coordinator's reports, and kills of the
operator.
"""

import base64
import json
import time
from collections.abc import Callable

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.training import NAME, Training, facts_secret, is_spare, node_of, secret_name
from understudy_protocol import pod as names
from understudy_protocol import wire
from understudy_protocol.enums import CloseReason, Fault, Strategy
from understudy_protocol.membership import Close
from understudy_protocol.observer import Cause, End, Lost, NodeFact, Nodes, Observe, Recovery

RESPONDING_S = 2.0
TRY_AGAIN_S = 10.0
COORDINATOR_PORT = 8478

pytestmark = pytest.mark.timeout(120)

SUCCEEDED = Close(CloseReason.SUCCEEDED, "all workers of all members exited 0")


def uid(pod: Raw) -> str:
    return str(pod["metadata"]["uid"])


def named(pods: list[Raw]) -> set[str]:
    return {pod["metadata"]["name"] for pod in pods}


def without_address(coordinator: Raw) -> Raw:
    """The coordinator in status, without the address of its Service."""
    return {name: value for name, value in coordinator.items() if name != "address"}


def lost(pod: Raw) -> Lost:
    metadata = pod["metadata"]
    return Lost(metadata["uid"], metadata["name"], node_of(pod), Fault.NODE, "silent", time.time())


async def test_a_job_gets_its_objects_its_pods_and_its_coordinator(training: Training, kube: Kube):
    # when a job is applied
    job = await training.apply()
    pods = await training.until_pods(3)

    # then its objects exist, and belong to the job
    made = [await kube.call("GET", f"secrets/{secret_name(job)}")]
    made += [await kube.call("GET", f"services/{service}") for service in (NAME, f"{NAME}-coordinator")]
    facts = await facts_secret(kube, pods[0])
    owners = [owner for raw in (*made, facts, *pods) for owner in raw["metadata"]["ownerReferences"]]
    assert [owner["uid"] for owner in owners] == [job["metadata"]["uid"]] * 7
    assert sorted(is_spare(pod) for pod in pods) == [False, False, True]
    address = f"{made[2]['spec']['clusterIP']}:{COORDINATOR_PORT}"
    assert json.loads(base64.b64decode(facts["data"][names.JOB_FILE]))["coordinator"] == address
    for pod in pods:
        assert (await facts_secret(kube, pod))["metadata"]["uid"] == facts["metadata"]["uid"]

    # when they run
    pods.sort(key=is_spare)
    await training.serve(job)
    await training.run_all(pods)

    # then the spare is appointed, labelled, and in status
    await training.until_appointed()
    (appoint,) = training.coordinator.appointments
    status = await training.status()
    assert status["coordinator"] == {
        "epoch": appoint.epoch,
        "podName": pods[2]["metadata"]["name"],
        "podUID": uid(pods[2]),
        "address": address,
    }
    assert (appoint.at_least_round, appoint.recoveries_by_strategy) == (-1, {})

    async def labelled() -> bool:
        labels = [pod["metadata"]["labels"].get(names.LABEL_COORDINATOR) for pod in await training.pods()]
        return sorted(map(str, labels)) == ["None", "None", "true"]

    await kube.until("the coordinator is labelled", labelled)

    # when it reports the first round
    training.coordinator_uid(pods[2])
    await training.report(0, [(pods[0], 0), (pods[1], 1), (pods[2], None)])

    # then the job runs, and events report the steps
    status = await training.until_phase("Running")
    assert status["coordinator"]["term"] == 1
    assert status["members"] == {"desired": 2, "active": 2, "ready": 2}
    assert status["spares"] == {"desired": 1, "ready": 1, "claimed": 0}
    assert await training.condition("SparesReady") == ("True", "1 of 1")

    async def is_reported() -> bool:
        return bool(await training.events("CoordinatorAppointed") and await training.events("Started"))

    await kube.until("events CoordinatorAppointed and Started", is_reported)


async def test_a_job_of_one_pod_gets_the_coordinators_service_with_its_first_spare(training: Training, kube: Kube):
    # given a job of one pod without spares
    def one_pod(job: Raw) -> None:
        job["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = 1
        job["spec"]["spares"] = {"replicas": 0}

    await training.apply(one_pod)
    (pod,) = await training.until_pods(1)

    # then its pod has the coordinator's label and no coordinator's address, because there is no Service for it
    async def coordinator_in_facts(of: Raw) -> str:
        return str(json.loads(base64.b64decode((await facts_secret(kube, of))["data"][names.JOB_FILE]))["coordinator"])

    assert pod["metadata"]["labels"][names.LABEL_COORDINATOR] == "true"
    assert await coordinator_in_facts(pod) == ""
    assert NAME in {raw["metadata"]["name"] for raw in await kube.list("services")}
    assert f"{NAME}-coordinator" not in {raw["metadata"]["name"] for raw in await kube.list("services")}

    # when it gets a spare, then also the Service, whose address only the spare has
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"spares": {"replicas": 1}}})
    spare = next(pod for pod in await training.until_pods(2) if is_spare(pod))
    service = await kube.call("GET", f"services/{NAME}-coordinator")
    assert await coordinator_in_facts(spare) == f"{service['spec']['clusterIP']}:{COORDINATOR_PORT}"
    assert names.LABEL_COORDINATOR not in spare["metadata"]["labels"]


async def test_a_lost_pod_is_replaced_by_exactly_one_spare_even_if_the_operator_was_killed_meanwhile(
    training: Training, kube: Kube, operator: OperatorProcess
):
    # given a job that runs
    a0, a1, spare = await training.start()
    epoch = training.coordinator.appointments[0].epoch

    # when a node dies, and a spare takes the rank
    cause = Cause(2, a1["metadata"]["name"], node_of(a1), None, None, "silent")
    detected = time.time()
    await training.set_node_ready(node_of(a1), ready=False)
    lasting = Recovery(1, Fault.NODE, Strategy.SPARE_SWAP, cause, detected, None)
    await training.report(1, [(a0, 0), (spare, 1)], lost=(lost(a1),), recoveries=(lasting,))

    # then the lost pod is gone, without a kubelet that ends it, and there is one new spare
    async def replaced() -> list[Raw]:
        pods = await kube.list("pods")
        return pods if len(pods) == 3 and a1["metadata"]["name"] not in named(pods) else []

    pods = await kube.until("the lost pod is replaced", replaced)
    (new,) = [pod for pod in pods if uid(pod) not in (uid(a0), uid(spare))]
    assert is_spare(new)
    terms = new["spec"]["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert node_of(a1) in str(terms)
    status = await training.until_phase("Recovering")

    # when the operator is killed, the recovery ends without it, and it starts again
    operator.kill()
    done = Recovery(1, Fault.NODE, Strategy.SPARE_SWAP, cause, detected, detected + 1.5)
    await training.report(
        1, [(a0, 0), (spare, 1)], lost=(lost(a1),), recoveries=(done,), counts={"InPlace": 0, "SpareSwap": 1}
    )
    operator.start()

    # then it makes no new appointment, creates no pod twice, and reports everything
    status = await training.until_phase("Running")
    assert [appoint.epoch for appoint in training.coordinator.appointments] == [epoch]
    assert training.coordinator.received.count(Observe()) == 1
    assert status["recoveriesByStrategy"] == {"inPlace": 0, "spareSwap": 1}
    assert (status["restarts"], status["lastRecovery"]["pauseSeconds"]) == (0, 1.5)
    await training.run(new)
    await training.report(1, [(a0, 0), (spare, 1), (new, None)], recoveries=(done,), counts={"SpareSwap": 1})

    async def ready() -> bool:
        return (await training.condition("SparesReady"))[0] == "True"

    await kube.until("the spares are ready", ready)
    assert named(await kube.list("pods")) == named([a0, spare, new])
    roles = {pod["metadata"]["name"]: is_spare(pod) for pod in await kube.list("pods")}
    assert roles == {a0["metadata"]["name"]: False, spare["metadata"]["name"]: False, new["metadata"]["name"]: True}
    assert len(await training.until_events("FaultDetected")) == 1
    assert len(await training.until_events("Recovered")) == 1


async def test_a_container_that_ran_out_of_memory_is_reported_as_such_once_the_kubelet_reports_it(
    training: Training, kube: Kube
):
    # given a job with a memory limit that has lost a pod
    def limited(job: Raw) -> None:
        template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template["spec"]["containers"][0]["resources"] = {"limits": {"memory": "64Gi"}}

    a0, a1, spare = await training.start(limited)
    cause = Cause(2, a1["metadata"]["name"], node_of(a1), None, None, "its connection ended")
    gone = Lost(uid(a1), a1["metadata"]["name"], node_of(a1), Fault.POD, cause.message, time.time())
    done = Recovery(1, Fault.POD, Strategy.SPARE_SWAP, cause, gone.at, gone.at + 1.5)
    await training.report(1, [(a0, 0), (spare, 1)], lost=(gone,), recoveries=(done,))

    async def is_reported(message: str) -> bool:
        return bool((await training.status()).get("lastRecovery", {}).get("cause", {}).get("message") == message)

    await kube.until("the loss is reported", lambda: is_reported("its connection ended"))
    # when the container's status has the reason
    await training.run_out_of_memory(a1)
    # then status has it, and one event
    reason = "container trainer ran out of memory (limit 64Gi); its connection ended"
    await kube.until("the reason is reported", lambda: is_reported(reason))

    async def event() -> bool:
        return [reason in note for note in await training.events("OutOfMemory")] == [True]

    await kube.until("an event reports it", event)


async def test_a_pod_whose_node_is_gone_is_force_deleted_and_replaced(training: Training, kube: Kube):
    # given a job that runs, without its spare's node
    *_, spare = await training.start()
    await kube.call("DELETE", f"/api/v1/nodes/{node_of(spare)}")

    # when the pod is deleted: no kubelet will end it
    await kube.call("DELETE", f"pods/{spare['metadata']['name']}")

    # then the operator force-deletes it, and creates another one
    async def replaced() -> bool:
        pods = await kube.list("pods")
        return len(pods) == 3 and spare["metadata"]["name"] not in named(pods)

    await kube.until("the spare is replaced", replaced)


async def test_a_coordinator_that_ends_is_replaced_in_a_higher_epoch(training: Training, kube: Kube):
    # given a job that runs
    a0, _, spare = await training.start()
    epoch = training.coordinator.appointments[0].epoch

    # when the coordinator's pod ends
    await training.end(spare, "", exit_code=137)

    # then an active is appointed, and a new spare is created
    async def succeeded() -> bool:
        return bool((await training.status())["coordinator"]["podUID"] == uid(a0))

    await kube.until("a successor is appointed", succeeded)
    assert (await training.status())["coordinator"]["epoch"] > epoch
    pods = [pod for pod in await kube.list("pods") if pod.get("status", {}).get("phase") != "Failed"]
    assert len(pods) <= 3


async def test_an_election_is_followed_by_status_by_the_service_and_by_an_event(
    training: Training, kube: Kube, operator: OperatorProcess
):
    # given a job that runs, with voters, and with the first active as standby coordinator
    a0, a1, spare = await training.start()
    rank_holders = [(a0, 0), (a1, 1), (spare, None)]
    voters = tuple(uid(pod) for pod in (a0, a1, spare))
    await training.report(0, rank_holders, standby_coordinators=(uid(a0),), voters=voters)
    epoch = training.leadership_term.epoch

    # when the coordinator is deleted, and the standby coordinator is elected meanwhile
    await training.coordinator.stop()
    await kube.call("DELETE", f"pods/{spare['metadata']['name']}")
    await training.elect(a0, 0, rank_holders[:2], standby_coordinators=(uid(a1),), voters=voters)

    # then status reports it
    async def is_reported() -> bool:
        return bool((await training.status())["coordinator"]["podUID"] == uid(a0))

    await kube.until("status reports the elected pod", is_reported)
    status = await training.status()
    name = a0["metadata"]["name"]
    assert without_address(status["coordinator"]) == {"epoch": epoch, "term": 2, "podName": name, "podUID": uid(a0)}

    # and the Service selects it, an event reports it, and no pod was appointed
    async def followed() -> bool:
        labels = {x["metadata"]["name"]: x["metadata"]["labels"] for x in await kube.list("pods")}
        elected = await training.events("CoordinatorElected")
        return labels[name].get(names.LABEL_COORDINATOR) == "true" and len(elected) == 1

    await kube.until("label and event", followed)
    assert await training.events("CoordinatorElected") == [f"{name} was elected coordinator (term 2 of epoch {epoch})"]
    assert training.standby.appointments == []

    # when the operator restarts, then it finds that coordinator, and appoints none
    operator.kill()
    messages = len(training.standby.received)
    operator.start()

    async def found() -> bool:
        return Observe() in training.standby.received[messages:]

    await kube.until("the operator has found the coordinator", found)
    await training.elect(a0, 1, rank_holders[:2], voters=voters)  # a new term of the same pod

    async def is_reported_again() -> bool:
        return bool((await training.status())["coordinator"]["term"] == 3)

    await kube.until("term 3", is_reported_again)
    assert len(await training.events("CoordinatorAppointed")) == 1
    assert training.standby.appointments == []


async def test_a_coordinator_is_appointed_if_no_election_is_possible(training: Training, kube: Kube):
    # given a job that runs, with voters, and without a standby coordinator
    a0, a1, spare = await training.start()
    voters = tuple(uid(pod) for pod in (a0, a1, spare))
    await training.report(0, [(a0, 0), (a1, 1), (spare, None)], voters=voters)
    epoch = training.leadership_term.epoch

    # when the coordinator's pod ends
    lost_at = time.monotonic()  # before the stop, which waits for the operator to close its connection
    await training.coordinator.stop()
    await training.end(spare, "", exit_code=137)

    # then an active that has answered is appointed, once the operator has asked the pods for a moment
    async def appointed() -> bool:
        return bool(training.standby.appointments)

    await kube.until("an active is appointed", appointed)
    assert time.monotonic() - lost_at >= RESPONDING_S - 1
    assert training.standby.received[0] == Observe()
    (appoint,) = training.standby.appointments
    assert (appoint.epoch > epoch, appoint.at_least_round) == (True, 0)
    status = await training.status()
    holder = {"podName": a0["metadata"]["name"], "podUID": uid(a0)}
    assert without_address(status["coordinator"]) == {"epoch": appoint.epoch, **holder}


async def test_the_coordinator_gets_the_racks_of_the_jobs_nodes(training: Training, kube: Kube):
    # given an elastic job whose spares should be in the lost pod's rack
    def change(job: Raw) -> None:
        job["spec"]["spares"]["topologyKey"] = "rack"
        job["spec"]["elastic"] = {"minPods": 1}
        job["spec"]["recovery"] = {"spareTimeout": "5s", "coordinatorLossTimeout": "Off"}

    pods = await training.start(change)

    # then its pods know how far it may shrink, and when
    secret = await facts_secret(kube, pods[0])
    shape = json.loads(base64.b64decode(secret["data"][names.JOB_FILE]))["shape"]
    assert (shape["min_actives"], shape["spare_timeout_s"], shape["fence_s"]) == (1, 5.0, 0.0)

    # and the coordinator knows the racks, also of a node that moves
    def facts(*racks: str) -> tuple[NodeFact, ...]:
        return tuple(sorted((NodeFact(node_of(x), rack) for x, rack in zip(pods, racks, strict=True)), key=str))

    def is_reported() -> tuple[NodeFact, ...]:
        newest = training.coordinator.received[-1]
        return newest.facts if isinstance(newest, Nodes) else ()

    async def is_received() -> bool:
        return is_reported() == facts("r0", "r1", "r2")

    for number, pod in enumerate(pods):
        await training.label_node(node_of(pod), rack=f"r{number}")
    await kube.until("the racks are sent", is_received)
    await training.label_node(node_of(pods[1]), rack="r7")

    async def is_received_again() -> bool:
        return is_reported() == facts("r0", "r7", "r2")

    await kube.until("the new rack is sent", is_received_again)


async def test_a_finished_job_stays_finished_when_its_pods_are_deleted_and_the_operator_starts_again(
    training: Training, kube: Kube, operator: OperatorProcess
):
    # given a job that has succeeded, as its finished pods report
    pods = await training.start()
    await training.coordinator.stop()
    for pod in pods:
        await training.end(pod, wire.encode(SUCCEEDED), exit_code=0)
    status = await training.until_phase("Succeeded")
    assert (status["terminalState"], status["members"]["active"]) == ("Completed", 0)
    assert await training.condition("Completed") == ("True", SUCCEEDED.message)

    # when its pods are deleted while no operator runs
    operator.kill()
    for pod in pods:
        await training.remove(pod)
    operator.start()

    # then it gets no new ones, although another job gets its own
    await kube.call("POST", "trainingjobs", await another_job(kube))
    await training.until_pods(3)
    owners = {pod["metadata"]["labels"][names.LABEL_JOB] for pod in await kube.list("pods")}
    assert owners == {"another"}
    assert (await training.status())["phase"] == "Succeeded"


async def another_job(kube: Kube) -> Raw:
    job = await kube.call("GET", f"trainingjobs/{NAME}")
    return {**job, "metadata": {"name": "another"}, "status": {}}


async def test_a_deleted_job_is_released_and_one_of_the_same_name_starts(training: Training, kube: Kube):
    # given a job that runs
    pods = await training.start()
    assert len(training.coordinator.observers) == 1

    # when it is deleted, and one of the same name is created before the garbage collector has run
    await kube.call("DELETE", f"trainingjobs/{NAME}")

    async def left_alone() -> bool:
        return not training.coordinator.observers

    await kube.until("the operator leaves the coordinator", left_alone)
    assert training.coordinator.received[-1] == End(CloseReason.DELETED, "the TrainingJob was deleted")
    job = await training.apply()

    # then the new job reports the reason of its wait, and continues when the objects are gone
    async def is_reported() -> bool:
        status, message = await training.condition("Blocked")
        text = f"Service {NAME}-coordinator exists and does not belong to this job"
        return status == "True" and message.startswith(text)

    await kube.until("condition Blocked", is_reported)
    for path in (f"services/{NAME}", f"services/{NAME}-coordinator"):
        await kube.call("DELETE", path)

    # it gets its own pods, the old ones are not changed, and the old job's round does not count
    await training.until_pods(6)
    new = [
        pod
        for pod in await kube.list("pods")
        if pod["metadata"]["labels"][names.LABEL_JOB_UID] == job["metadata"]["uid"]
    ]
    assert sorted(is_spare(pod) for pod in new) == [False, False, True]
    assert {uid(pod) for pod in pods} < {uid(pod) for pod in await training.pods()}
    status = await training.until_phase("Pending")
    assert "round" not in status


async def test_spares_follow_the_spec(training: Training, kube: Kube):
    # given a job that runs
    a0, a1, spare = await training.start()

    # when spares.replicas grows, and then shrinks
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"spares": {"replicas": 3}}})
    assert len(await training.until_pods(5)) == 5
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"spares": {"replicas": 1}}})

    # then spares that have not started are deleted again
    pods = await training.until_pods(3)
    assert named(pods) == named([a0, a1, spare])


def with_unknown_field(job: Raw) -> None:
    trainer(job)["imagePullPolcy"] = "Always"


def with_wrong_resource(job: Raw) -> None:
    trainer(job)["resources"] = {"limits": {"gpu": 1}}


def trainer(job: Raw) -> Raw:
    spec: Raw = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    container: Raw = spec["containers"][0]
    return container


@pytest.mark.parametrize(
    ("change", "code", "message"),
    [
        (with_unknown_field, 400, 'strict decoding error: unknown field "spec.containers[0].imagePullPolcy"'),
        (with_wrong_resource, 422, "spec.containers[0].resources.limits[gpu]"),
    ],
)
async def test_a_template_that_the_api_server_rejects_is_reported_and_retried_slowly(
    training: Training, kube: Kube, change: Callable[[Raw], None], code: int, message: str
):
    # when a job is applied whose pods the API server rejects
    await training.apply(change)

    # then a condition and one event report it, with its message
    async def is_reported() -> bool:
        status, text = await training.condition("Invalid")
        return status == "True" and message in text

    await kube.until("condition Invalid", is_reported)

    async def event() -> bool:
        return len(await training.events("Rejected")) == 1

    await kube.until("event Rejected", event)

    # and the creation is retried only now and then
    async def refused() -> int:
        lines = (await kube.text("/metrics")).splitlines()
        wanted = (f'apiserver_request_total{{code="{code}"', 'resource="pods"', 'verb="POST"')
        return sum(int(float(line.split()[-1])) for line in lines if all(part in line for part in wanted))

    async def after_another_reconcile() -> float:
        before = await refused()

        async def more() -> bool:
            return await refused() > before

        await kube.until("another pass", more)
        return time.monotonic()

    times = [await after_another_reconcile() for _ in range(2)]
    while times[-1] - times[-2] < TRY_AGAIN_S / 3:  # the pauses double
        assert len(times) < 10, f"it is tried again and again, at {times}"
        times.append(await after_another_reconcile())
    assert times[-1] - times[-2] < 2 * TRY_AGAIN_S
    assert await training.pods() == []
    assert len(await training.events("Rejected")) == 1
