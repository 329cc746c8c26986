"""Each fault of a job has a Recovery object, also if the operator is killed meanwhile."""

import time
from collections.abc import Sequence

import pytest

from tests.integration.operator.kube import Kube, Raw
from tests.integration.operator.process import OperatorProcess
from tests.integration.operator.training import NAME, Training, node_of
from understudy_operator.plan.times.rfc3339 import micro_time
from understudy_protocol.enums import CloseReason, Fault, Strategy
from understudy_protocol.membership import Close
from understudy_protocol.observer import Cause, Consequence, End, Recovery

pytestmark = pytest.mark.timeout(180)  # the first test waits for the API server

TRACEBACK = 'File "t.py", line 7, in <module>\nRuntimeError: boom'
SELECTOR = f"understudy.dev/job-name={NAME}"


def a_fault(pod: Raw, detected_at: float) -> Recovery:
    cause = Cause(2, pod["metadata"]["name"], node_of(pod), 1, None, "RuntimeError: boom", TRACEBACK)
    followed = (Consequence(0, "another pod", None, "SIGABRT", "killed by SIGABRT"),)
    reason = "restart 1 of 10 within 1 h"
    return Recovery(
        1,
        Fault.PROCESS,
        Strategy.IN_PLACE,
        cause,
        detected_at,
        None,
        reason,
        consequences=followed,
        consequence_count=1,
    )


def ended(fault: Recovery, lost_steps: int | None = 3) -> Recovery:
    return Recovery(
        fault.round,
        fault.fault,
        fault.strategy,
        fault.cause,
        fault.detected_at,
        fault.detected_at + 1.5,
        fault.reason,
        pause_s=1.25,
        consequences=fault.consequences,
        consequence_count=fault.consequence_count,
        lost_steps=lost_steps,
    )


async def recoveries(kube: Kube) -> list[Raw]:
    """By their names, and so by the times of the faults."""
    items: list[Raw] = (await kube.call("GET", "recoveries", labelSelector=SELECTOR))["items"]
    return sorted(items, key=lambda raw: str(raw["metadata"]["name"]))


async def report(training: Training, pods: Sequence[Raw], *faults: Recovery) -> None:
    ranks = [(pods[0], 0), (pods[1], 1), (pods[2], None)]
    await training.report(1, ranks, recoveries=faults, counts={"InPlace": len(faults)})


async def test_a_fault_has_one_object_from_its_detection_to_its_end(
    training: Training, kube: Kube, operator: OperatorProcess
) -> None:
    # given a job whose coordinator reports a fault
    pods = await training.start()
    job = await kube.call("GET", f"trainingjobs/{NAME}")
    fault = a_fault(pods[1], time.time())
    await report(training, pods, fault)

    async def is_created() -> list[Raw]:
        return await recoveries(kube)

    (created,) = await kube.until("the fault has an object", is_created)
    assert "outcome" not in created
    # when the operator is killed, the recovery ends without it, and it starts again
    operator.kill()
    await report(training, pods, ended(fault))
    operator.start()

    async def has_ended() -> list[Raw]:
        found = await recoveries(kube)
        return found if found[0].get("outcome") else []

    # then the same object has the whole story
    (raw,) = await kube.until("the object has its end", has_ended)
    metadata = raw.pop("metadata")
    assert metadata["uid"] == created["metadata"]["uid"]
    assert metadata["name"].startswith(f"{NAME}-2")
    assert [owner["uid"] for owner in metadata["ownerReferences"]] == [job["metadata"]["uid"]]
    assert raw == {
        "apiVersion": "understudy.dev/v1alpha1",
        "kind": "Recovery",
        "jobName": NAME,
        "fault": "Process",
        "cause": {
            "rank": 2,
            "pod": pods[1]["metadata"]["name"],
            "node": node_of(pods[1]),
            "exitCode": 1,
            "message": "RuntimeError: boom",
            "traceback": TRACEBACK,
        },
        "consequences": [{"rank": 0, "pod": "another pod", "signal": "SIGABRT", "message": "killed by SIGABRT"}],
        "consequenceCount": 1,
        "strategy": "InPlace",
        "reason": "restart 1 of 10 within 1 h",
        "round": 1,
        "outcome": "Recovered",
        "detectedAt": micro_time(fault.detected_at),
        "resumedAt": micro_time(fault.detected_at + 1.5),
        "pauseSeconds": 1.25,
        "lostSteps": 3,
        "rankSecondsLost": 5.0,
    }
    # and status has the counts, without the long texts
    status = await training.status()
    assert (status["ready"], status["recoveryCount"]) == ("2/2", 1)
    assert "traceback" not in status["lastRecovery"]["cause"]


async def test_the_newest_objects_are_kept(training: Training, kube: Kube) -> None:
    # given a job that keeps two, and has three faults
    pods = await training.start(lambda job: job["spec"].update(recovery={"historyLimit": 2}))
    began = time.time()
    faults = [ended(a_fault(pods[1], began + number)) for number in range(3)]
    await report(training, pods, *faults[:2])

    async def has(times: Sequence[str]) -> bool:
        return [raw["detectedAt"] for raw in await recoveries(kube)] == [*times]

    times = [micro_time(fault.detected_at) for fault in faults]
    await kube.until("two faults have objects", lambda: has(times[:2]))
    # when the third one follows
    await report(training, pods, *faults)
    # then the first one is deleted
    await kube.until("the newest two are there", lambda: has(times[1:]))


async def test_devices_are_the_unit_of_the_cost(training: Training, kube: Kube) -> None:
    # given a job whose two pods with ranks have four GPUs each
    def with_devices(job: Raw) -> None:
        template = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        template["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "4"}}

    pods = await training.start(with_devices)
    await report(training, pods, ended(a_fault(pods[1], time.time())))

    async def has_cost() -> list[Raw]:
        return [raw for raw in await recoveries(kube) if raw.get("outcome")]

    # then a pause of 1.25 s costs eight times as much
    (raw,) = await kube.until("the object has its cost", has_cost)
    assert (raw.get("gpuSecondsLost"), raw.get("rankSecondsLost")) == (10.0, None)


async def test_a_suspension_ends_an_open_recovery(training: Training, kube: Kube) -> None:
    pods = await training.start()
    await report(training, pods, a_fault(pods[1], time.time()))

    async def outcomes() -> list[str]:
        return [raw.get("outcome", "open") for raw in await recoveries(kube)]

    async def is_created() -> bool:
        return await outcomes() == ["open"]

    await kube.until("the fault has an object", is_created)
    # when the job is suspended, and its coordinator closes the rendezvous
    await kube.call("PATCH", f"trainingjobs/{NAME}", {"spec": {"suspend": True}})

    async def is_asked() -> bool:
        return any(isinstance(message, End) for message in training.coordinator.received)

    await kube.until("the coordinator is asked to close", is_asked)
    await training.report(1, [], closed=Close(CloseReason.SUSPENDED, "the job is suspended"))

    async def has_ended() -> bool:
        return await outcomes() == ["Suspended"]

    await kube.until("the object has its end", has_ended)
