"""The objects of a large job do not lead to collections of all objects, which would stop the event loop."""

from __future__ import annotations

import subprocess
import sys

#: Stores as many pods as a job of 5,000 has, and prints how often all objects were scanned meanwhile.
SCRIPT = """
import gc
from understudy_protocol import garbage

if {thresholds}:
    garbage.collect_rarely({thresholds})
before = gc.get_stats()[2]["collections"]
pods = [
    {{"metadata": {{"labels": {{"a": [number]}}}}, "spec": {{"containers": [{{"env": [{{"v": [number]}}]}}]}}}}
    for number in range(5000 * 4)
]
print(gc.get_stats()[2]["collections"] - before)
"""


def full_collections(thresholds: str) -> int:
    command = [sys.executable, "-c", SCRIPT.format(thresholds=thresholds)]
    done = subprocess.run(command, env={"PYTHONPATH": "sidecar"}, capture_output=True, text=True, check=True)
    return int(done.stdout)


def test_all_objects_are_not_scanned_while_the_pods_of_a_large_job_are_stored() -> None:
    assert full_collections("garbage.FEW_SCANS") == full_collections("garbage.SHORT_SCANS") == 0
    # with Python's own settings they are
    assert full_collections("None") > 0
