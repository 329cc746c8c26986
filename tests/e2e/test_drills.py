"""`understudy drill` breaks a real job in each way that it documents, and shows the recovery that status has."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.e2e.lanes import NAMESPACE
from tests.e2e.plain import MakeJob, PlainJob

pytestmark = pytest.mark.timeout(300)

STEP_TIMEOUT_S = 5


def drill(job: PlainJob, fault: str) -> dict[str, Any]:
    words = ("drill", job.name, "--fault", fault, "--yes", "--timeout", "90", "-n", NAMESPACE, "-o", "json")
    command = [sys.executable, "-m", "understudy_cli", *words, "--kubeconfig", str(job.cluster.kubeconfig)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, f"{fault}: {done.stderr}\n{job.text()}"
    shown: dict[str, Any] = json.loads(done.stdout)
    return shown


def test_each_fault_of_a_drill_breaks_what_it_names_and_the_job_recovers(make_job: MakeJob) -> None:
    # given a job that allows drills, with each of its pods on a node of its own
    job = make_job("drills", actives=3, spares=1, apart=True)
    job.apply(drills="Allowed", faults={"hang": {"stepTimeout": f"{STEP_TIMEOUT_S}s"}})
    found: dict[str, tuple[str, str, bool]] = {}
    for fault in ("process", "hang", "pod", "node", "coordinator"):
        job.wait_until_whole()
        before = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in job.pods()}
        coordinator = before[job.status()["coordinator"]["podUID"]]
        # when it is broken on purpose
        (row,) = drill(job, fault)["rows"]
        status = job.wait_until_whole()
        # then the table names what was broken
        lost = {name for uid, name in before.items() if uid not in {pod["metadata"]["uid"] for pod in job.pods()}}
        named = {name for name in before.values() if name in row["broken"]}
        is_of_pod = fault in ("pod", "node", "coordinator")
        assert lost == (named if is_of_pod else set()), (fault, row, lost)
        assert (coordinator in named) == (fault == "coordinator"), (fault, row, coordinator)
        # and status has the recovery of this drill, with its strategy
        found[fault] = (row["strategy"], status["lastRecovery"]["fault"], row["first_step_after"] != "-")
        if row["strategy"] != "Election":
            assert status["lastRecovery"]["strategy"] == row["strategy"]
            assert status["lastRecovery"]["reason"].startswith("a drill")
    # and workers restart in place, and a spare takes the ranks of a pod
    assert found["process"] == ("InPlace", "Process", True)
    assert found["hang"] == ("InPlace", "Hang", True)
    assert found["pod"] == ("SpareSwap", "Pod", True)
    assert found["node"][0] == "SpareSwap"
    assert found["coordinator"][0] in ("SpareSwap", "Election")
