"""A rank that hangs: its stacks are in the log, status names it, and the training continues."""

import re
from collections.abc import Iterator

import pytest

from tests.cluster import Cluster
from tests.e2e.compared import fault_of, sampled
from tests.e2e.lanes import NAMESPACE
from tests.e2e.objects import read_log
from tests.e2e.plain import STEP, PlainJob
from tests.e2e.training import GROUP_RANK
from tests.e2e.truth import Observed, differences

pytestmark = pytest.mark.timeout(200)

STEP_TIMEOUT_S = 5
#: Some five seconds after the start.
HANGS_AT = 50

#: Two ranks that step together: each waits for the other in every step. In the first round rank 1 hangs in a lock.
TOGETHER = f"""{STEP}
import socket, threading

rank, address = int(os.environ["RANK"]), (os.environ["MASTER_ADDR"], 29999)

def meet():
    if rank == 0:
        with socket.create_server(("0.0.0.0", address[1])) as server:
            return server.accept()[0]
    while True:
        try:
            return socket.create_connection(address)
        except OSError:
            time.sleep(0.1)

def waits_for_its_peer():
    if not peer.recv(1):
        raise SystemExit("the peer has gone")

def hangs_in_a_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()

peer, n = meet(), 0
while True:
    n += 1
    if rank == 1 and n > {HANGS_AT} and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        hangs_in_a_lock()
    peer.send(b"x")
    waits_for_its_peer()
    step(n)
    time.sleep(0.1)
"""


@pytest.fixture
def job(cluster: Cluster) -> Iterator[PlainJob]:
    made = PlainJob(cluster, NAMESPACE, "hang", script=TOGETHER)
    yield made
    made.discard()


def test_a_rank_that_hangs_is_named_and_the_training_continues(job: PlainJob) -> None:
    # given a training with hang detection, in which a rank hangs, and the other waits for it
    job.apply(faults={"hang": {"stepTimeout": f"{STEP_TIMEOUT_S}s"}})
    job.wait_until_whole()
    pods = {pod["metadata"]["uid"]: pod for pod in job.pods()}
    # when it has recovered
    with sampled(job.status) as samples:
        status = job.wait_for("the job has recovered", lambda s: s.get("lastRecovery", {}).get("resumedAt"))
    # then status has the fault, and names a rank
    last = status["lastRecovery"]
    assert last["round"] == 1
    message = last["cause"]["message"]
    rank = last["cause"]["rank"]
    result = rf"no step for \d+ s; slowest: rank {rank} at step {HANGS_AT} \(others: {HANGS_AT}\)"
    assert re.fullmatch(result, message), message
    # which of both it is cannot be known, but the pod is that rank's, and the times are those of the workers' reports
    pod = next(pod for pod in pods.values() if pod["metadata"]["annotations"].get(GROUP_RANK) == str(rank))
    steps = job.reported_steps()
    hung_at = max(step.at for of_pod in steps.values() for step in of_pod if step.round[2] == 0)
    observed = Observed(hung_at, (), steps, [sample for sample in samples if sample.requested_at > hung_at])
    found = differences(fault_of(pod, "Hang", "InPlace"), observed, status)
    assert not found, "\n".join(found)
    # and each pod's log has the stacks of its worker: one hangs, and one waits
    logs = trainer_logs(job)
    for rank, where in ((0, "waits_for_its_peer"), (1, "hangs_in_a_lock")):
        header = rf"worker local_rank=0 rank={rank} made no step for \d+ s since step {HANGS_AT}: its stacks follow\n"
        stacks = re.split(header, logs)[1].partition("understudy launcher:")[0]
        assert f"in {where}" in stacks, logs
    # and every pod is still there, and continues to step
    assert {pod["metadata"]["uid"] for pod in job.pods()} == pods.keys()
    job.wait_for("the training continues", lambda s: s["progress"]["step"] > HANGS_AT)
    assert job.status()["recoveriesByStrategy"]["inPlace"] == 1


def trainer_logs(job: PlainJob) -> str:
    names = [pod["metadata"]["name"] for pod in job.pods()]
    return "\n".join(read_log(job.cluster, NAMESPACE, name, "trainer") for name in names)
