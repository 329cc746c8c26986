"""The end of a job, watched from outside: the time at which each process of its pods exits, by pidfd.

Pod status has whole seconds only.
"""

import os
import select
import time
from dataclasses import dataclass

from tests.e2e.acts import worker_pids
from tests.e2e.training import Raw, Training
from tests.e2e.waiting import wait_until


@dataclass(frozen=True)
class Exits:
    """Unix seconds at which processes exited, by "pod/container"; workers separately."""

    workers: dict[str, float]
    containers: dict[str, float]

    @property
    def slowest_s(self) -> float:
        """From the last worker's exit to the last container's, in seconds."""
        return max(self.containers.values()) - max(self.workers.values())


def finish_and_watch_exits(training: Training, limit_s: float) -> Exits:
    """Let the training finish, and watch all processes of the job's running pods until they have exited."""
    watched: dict[int, str] = {}
    workers: set[int] = set()
    for pod in training.pods():
        if pod["status"]["phase"] != "Running":
            continue
        name = pod["metadata"]["name"]
        for container, pid in training.cluster.container_pids(training.namespace, name).items():
            watched[os.pidfd_open(pid)] = f"{name}/{container}"
        for pid in worker_pids(training, name):
            fd = os.pidfd_open(pid)
            watched[fd] = f"{name}/worker-{pid}"
            workers.add(fd)
    training.finish()
    exited = _wait_for_exits(dict(watched), limit_s)
    return Exits(
        workers={watched[fd]: at for fd, at in exited.items() if fd in workers},
        containers={watched[fd]: at for fd, at in exited.items() if fd not in workers},
    )


def _wait_for_exits(left: dict[int, str], limit_s: float) -> dict[int, float]:
    poll = select.poll()
    for fd in left:
        poll.register(fd, select.POLLIN)
    end = time.monotonic() + limit_s
    exited = {}
    while left:
        ready = poll.poll(max(0, (end - time.monotonic()) * 1000))
        if not ready:
            raise AssertionError(f"these did not exit within {limit_s:g} s: {sorted(left.values())}")
        for fd, _ in ready:
            exited[fd] = time.time()
            poll.unregister(fd)
            os.close(fd)
            left.pop(fd)
    return exited


def wait_for_end(training: Training, limit_s: float = 60) -> Raw:
    """The status once the job is Completed and none of its pods runs any more."""
    status = training.wait_for_status("the job is Completed", lambda s: s.get("terminalState") == "Completed", limit_s)
    wait_until(
        "no pod of the job runs",
        lambda: all(pod["status"]["phase"] in ("Succeeded", "Failed") for pod in training.pods()),
        30,
        seen=training.pods_text,
    )
    return status


def exit_codes(training: Training) -> dict[str, int]:
    """Of the pods that have succeeded."""
    return codes_of([pod for pod in training.pods() if pod["status"]["phase"] == "Succeeded"])


def codes_of(pods: list[Raw]) -> dict[str, int]:
    """The exit code of every container, by "pod/container"; -1 while it runs."""
    codes = {}
    for pod in pods:
        statuses = (*pod["status"].get("initContainerStatuses", ()), *pod["status"].get("containerStatuses", ()))
        for container in statuses:
            terminated = container.get("state", {}).get("terminated")
            codes[f"{pod['metadata']['name']}/{container['name']}"] = terminated["exitCode"] if terminated else -1
    return codes


def ended_badly(codes: dict[str, int]) -> dict[str, int]:
    """The containers with another exit code than 0."""
    assert codes, "no container is known"
    return {container: code for container, code in codes.items() if code != 0}
