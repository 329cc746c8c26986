"""`make smoke`, `make test` and `make test-all`: the commands of each, their order, and a report of their times.

    smoke       check, integration, a short story on the real cluster: the inner loop
    test        all tests that a change has to pass
    test-all    also the tests that take hours: those marked nightly (all injected kinds through all faults, like
                cases), 50 kills of the operator, Kueue, real inference engines, training frameworks, verl's sources,
                arbitrary objects, simulations with new seeds, integration tests against older API servers, the launcher
                with each Python, torchrun with other versions of torch, the files of a release, the documentation site,
                the dependency scan

The end-to-end tests run in lanes of nodes; tests that stop or replace the operator run afterwards, one at a time. The
lanes need both cores only in their first minutes and mostly wait afterwards. So all other suites run at the same time,
one after the other, with a small share of a busy CPU. Their output is in build/beside-*.log. Every pytest run writes
a JUnit file to build/junit; build/durations.json has the seconds of each phase and test.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from pathlib import Path
from xml.etree import ElementTree

from tests import attacks
from tests.cluster.cgroups import TREE, ControlGroup
from tests.machine_speed import REFERENCE_S, machine_seconds

CHECKOUT = Path(__file__).parents[1]
BUILD = CHECKOUT / "build"
JUNIT = BUILD / "junit"
SLOWEST = 10
#: Seeds of one night; consecutive nights take consecutive ranges.
NIGHTLY_SEEDS = {"simulate": 20_000, "simulate-operator": 3_000}
NIGHTLY_TARGETS = (
    "arbitrary",
    "integration-kubernetes",
    "pythons",
    "torches",
    "kueue",
    "engines",
    "frameworks",
    "verl",
    "e2e-kills",
    "release",
    "site",
    "scan",
)
#: The CPU shares of the suites beside the end-to-end tests; one session has 1024. Each test that starts a session has a
#: part of its own in the machine's root group, whatever its nice value, so pods would wait for CPU time.
BESIDE_CPU_SHARES = 512
EPOCH = date(2026, 1, 1)
#: The seeds of each night are recorded in this file, to be committed.
NIGHTS = "benchmarks/results/nights.json"


@dataclass
class Run:
    """The phases that have run so far. seconds: by phase, in order."""

    seconds: dict[str, float] = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def make(self, target: str, *variables: str) -> bool:
        """Run a target of the Makefile. Returns whether it passed."""
        with self._timed(target):
            code = subprocess.run(["make", target, *variables], cwd=CHECKOUT, check=False).returncode
        if code != 0:
            self.failed.append(target)
        return code == 0

    @contextmanager
    def beside(self, *targets: str) -> Iterator[None]:
        """Run targets during the body, and wait for their end after it. Variables of make may be among them."""
        output = BUILD / f"beside-{targets[0]}.log"
        group = ControlGroup(f"{TREE}-beside")
        group.ensure_everywhere()
        group.set_cpu_shares(BESIDE_CPU_SHARES)
        with output.open("w") as log:
            joins = f"echo $$ > {group.cpu_folder}/cgroup.procs"
            # Start a process group, so that all of it can be ended.
            others = subprocess.Popen(
                ["sh", "-c", f'{joins} && exec make --keep-going "$@"', "sh", *targets],
                cwd=CHECKOUT,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                process_group=0,
            )
        names = ", ".join(targets)
        print(f"beside the next tests: {names}; their output: {output.relative_to(CHECKOUT)}", flush=True)
        try:
            yield
            with self._timed(f"wait for {names}"):
                code = others.wait()
        finally:
            if others.poll() is None:
                os.killpg(others.pid, signal.SIGTERM)
                others.wait()
        print(output.read_text())
        if code != 0:
            self.failed.append(names)

    def attacks(self) -> None:
        """The table of `make attack`. The suites have already run its tests."""
        if attacks.main([str(file) for file in sorted(JUNIT.glob("*.xml"))]) != 0:
            self.failed.append("attack")

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self.seconds[name] = round(time.monotonic() - start, 1)


def smoke(run: Run) -> None:
    if run.make("check") and run.make("integration"):
        run.make("e2e-lanes", "E2E=tests/e2e/test_story.py -k 'applied or killed or deleted_pod or success'")


def test(run: Run) -> None:
    if not run.make("check"):
        return
    with run.beside("torchrun", "rollout", "integration", "ui", "simulation", "WORKERS=2"):
        run.make("e2e-lanes")
        run.make("e2e-alone")
    run.attacks()


def test_all(run: Run) -> None:
    night = (datetime.now(UTC).date() - EPOCH).days
    test(run)
    run.make("nightly")
    run.make("e2e-nightly")
    for target, seeds in NIGHTLY_SEEDS.items():
        run.make(target, f"SEEDS={seeds}", f"FIRST={night * seeds}", f"RECORD={NIGHTS}")
    for target in NIGHTLY_TARGETS:
        run.make(target)


SUITES = {"smoke": smoke, "test": test, "test-all": test_all}


def test_seconds() -> dict[str, float]:
    """The seconds of each test with its fixtures, from the JUnit files, longest first."""
    found: dict[str, float] = {}
    for file in JUNIT.glob("*.xml"):
        for case in ElementTree.parse(file).iter("testcase"):
            found[f"{case.get('classname')}::{case.get('name')}"] = float(case.get("time", "0"))
    return dict(sorted(found.items(), key=lambda pair: -pair[1]))


def failures() -> dict[str, str]:
    """The first line of the message of each failed test, from the JUnit files, and of each error of pytest itself."""
    found: dict[str, str] = {}
    for file in sorted(JUNIT.glob("*.xml")):
        for case in ElementTree.parse(file).iter("testcase"):
            for how in (*case.findall("failure"), *case.findall("error")):
                lines = (how.get("message") or how.text or "").strip()
                found[f"{file.stem}: {case.get('classname')}::{case.get('name')}"] = lines.partition("\n")[0]
    return found


def report(suite: str, run: Run, total_s: float, speeds_s: list[float]) -> None:
    """Print the times, and write them to build/durations.json. speeds_s: of the machine, at start and end."""
    tests = test_seconds()
    written = {
        "suite": suite,
        "passed": not run.failed,
        "seconds": round(total_s, 1),
        "machine_seconds": [round(speed_s, 2) for speed_s in speeds_s],
        "phases": run.seconds,
        "tests": tests,
    }
    (BUILD / "durations.json").write_text(json.dumps(written, indent=1) + "\n")
    print(f"\nthe {SLOWEST} slowest tests, in seconds:")
    for name, seconds in list(tests.items())[:SLOWEST]:
        print(f"  {seconds:6.1f}  {name}")
    print("phases, in seconds:")
    for name, seconds in run.seconds.items():
        print(f"  {seconds:6.1f}  {name}")
    speeds = " and ".join(f"{speed_s:.2f}" for speed_s in speeds_s)
    print(
        f"make {suite}: {total_s / 60:.1f} minutes; for a fixed calculation on each core this machine took {speeds} s "
        f"at the start and at the end (reference: {REFERENCE_S:.2f} s)"
    )
    for name, lines in failures().items():
        print(f"failed: {name}: {lines}")
    print(f"make {suite}: {'passed' if not run.failed else 'FAILED: ' + '; '.join(run.failed)}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.all", description=__doc__)
    parser.add_argument("suite", choices=SUITES)
    suite: str = parser.parse_args().suite
    shutil.rmtree(JUNIT, ignore_errors=True)
    JUNIT.mkdir(parents=True)
    start, run = time.monotonic(), Run()
    speeds_s = [machine_seconds()]
    print(f"a fixed calculation on each core: {speeds_s[0]:.2f} s (reference: {REFERENCE_S:.2f} s)", flush=True)
    SUITES[suite](run)
    total_s = time.monotonic() - start
    speeds_s.append(machine_seconds())
    report(suite, run, total_s, speeds_s)
    return 1 if run.failed else 0


if __name__ == "__main__":
    sys.exit(main())
