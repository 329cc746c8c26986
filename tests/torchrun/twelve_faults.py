"""`make twelve-faults`: what `why` says about twelve faults, as a table of docs/how-to/troubleshooting.md.

Each fault of LOCAL happens in a run of `understudy local` with real processes and real gloo: four ranks in two members,
and a spare. Three faults need a kubelet, a scheduler or a registry. For these the table has what `why` says about the
status that a cluster would have (tests/unit/cli/status_faults.py).
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cluster import Cluster
from tests.cluster.paths import CHECKOUT
from tests.torchrun.local_run import UNDERSTUDY, kill, local_runs, run_name
from tests.unit.cli import status_faults

TRAINING = Path(__file__).with_name("twelve_training.py")
PAGE = CHECKOUT / "docs" / "how-to" / "troubleshooting.md"
BEGIN, END = "<!-- twelve faults: make twelve-faults -->", "<!-- end of twelve faults -->"
LIMIT_S = 150.0
SIZE = ("--nodes", "2", "--nproc", "2", "--spares", "1")


@dataclass(frozen=True)
class LocalFault:
    """ranks: `why` has to name one of them. symptom: what it has to contain. stack: a function that it has to show.

    options: of the run. killed: by `understudy local kill`, once the training steps.
    """

    name: str
    how: str
    ranks: tuple[int, ...]
    fault: str
    symptom: str
    stack: str = ""
    options: tuple[str, ...] = ()
    killed: str = ""


LOCAL = (
    LocalFault("exception on one rank", "rank 2 raises", (2,), "Process", "ValueError: loss is nan"),
    LocalFault("exception on all ranks", "all ranks raise", (0, 1, 2, 3), "Process", "ValueError: loss is nan"),
    LocalFault("out of memory", "rank 2 allocates more than its RLIMIT_AS", (2,), "Process", "MemoryError"),
    LocalFault("segmentation fault", "rank 2 reads address 0", (2,), "Process", "killed by SIGSEGV"),
    LocalFault("SIGKILL from outside", "`local kill 2`", (2,), "Process", "killed by SIGKILL", killed="2"),
    LocalFault(
        "collective timeout",
        "rank 2 does not come to an all-reduce; gloo's timeout is 4 s; hang detection is off",
        (2,),
        "Process",
        "no error until ranks 0-1, 3 waited too long in a collective",
    ),
    LocalFault(
        "hang before the first step",
        "rank 2 waits before `init_process_group`",
        (2,),
        "Hang",
        "ranks 0-1, 3 wait in torch.distributed, and its stack is elsewhere",
        "open_data",
        ("--start-timeout", "15"),
    ),
    LocalFault(
        "hang in a collective",
        "rank 2 calls an all-reduce that no other rank calls",
        (2,),
        "Hang",
        "ranks 0-1, 3 wait in all_reduce 5 of group 0 (default_pg), and it has not entered it: rank 2 waits in "
        "all_reduce 1 of group 1",
        "average",
        ("--step-timeout", "4"),
    ),
    LocalFault(
        "hang in a data loader",
        "a worker process of rank 2's DataLoader does not return",
        (2,),
        "Hang",
        "ranks 0-1, 3 wait in all_reduce 6 of group 0 (default_pg), and it has not entered it",
        "_try_get_data",
        ("--step-timeout", "4"),
    ),
    LocalFault(
        "power-off of a node",
        "`local kill node-1`: SIGKILL to all its processes",
        (2,),
        "Pod",
        "its connection ended",
        killed="node-1",
    ),
)


@dataclass(frozen=True)
class Answer:
    """What `why` said. seconds: from the detection of the fault until it had said so."""

    place: str
    fault: str
    symptom: str
    stack: str
    seconds: float

    def is_right(self, wanted: LocalFault) -> bool:
        rank = re.match(r"rank (\d+)", self.place)
        return (
            rank is not None
            and int(rank[1]) in wanted.ranks
            and self.fault == wanted.fault
            and wanted.symptom in self.symptom
            and wanted.stack in self.stack
        )


@contextmanager
def broken(fault: LocalFault, folder: Path, torch: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A run in which the fault happens."""
    script = TRAINING.read_text(encoding="utf-8")
    with local_runs(folder, torch, script, *SIZE, *fault.options, FAULT=fault.name) as start:
        run = start("--", sys.executable, "-u", "{train}")
        if fault.killed:
            wait_for_step(run, folder, 5)
            kill(fault.killed)
        yield run


def wait_for_step(run: subprocess.Popen[bytes], folder: Path, number: int) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not re.match(rf"\d{{2}}|[{number}-9]", str((ask("get") or {"job": {"step": ""}})["job"]["step"])):
        assert run.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()  # noqa: PT018


def explained(fault: LocalFault, run: subprocess.Popen[bytes], folder: Path) -> Answer:
    """The first right answer of `why`, or its last one if none is right in time."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        shown = ask("why")
        at = time.time()
        for found in [] if shown is None else shown["faults"]:
            text = "\n".join(found["stack"])
            answer = Answer(found["place"], found["fault"], found["symptom"], text, at - detected_at())
            if answer.is_right(fault) or time.monotonic() > deadline:
                return answer
        assert run.poll() is None and time.monotonic() < deadline, (folder / "log").read_text()  # noqa: PT018


def ask(verb: str) -> Any:
    """None while the run has not begun."""
    command = [*UNDERSTUDY, verb, run_name(), "-o", "json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return json.loads(done.stdout) if done.returncode == 0 else None


def detected_at() -> float:
    """Unix seconds, of the newest fault."""
    entries = (ask("timeline") or {"entries": []})["entries"]
    return max(float(entry["at"]) for entry in entries if entry["kind"] == "Fault")


# The table ------------------------------------------------------------------------------------------------------------


def table(answers: Mapping[str, Answer]) -> str:
    """A fault without an answer has what the test expects, and no time."""
    lines = ["| fault | how it was made | `why` | after |", "|---|---|---|---|"]
    for fault in LOCAL:
        answer = answers.get(fault.name) or expected(fault)
        place = re.sub(r"pod \S+, ", "", answer.place)
        after = f"{answer.seconds:.1f} s" if answer.seconds else "-"
        lines.append(f"| {fault.name} | {fault.how} | {place}: {answer.symptom} | {after} |")
    for name, how, why in status_faults.all_of_them():
        lines.append(f"| {name} | {how} | {why} | - |")
    return "\n".join(lines)


def expected(fault: LocalFault) -> Answer:
    ranks = " or ".join(f"rank {rank}" for rank in fault.ranks)
    return Answer(ranks, fault.fault, fault.symptom, fault.stack, 0.0)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="Write what `why` says about twelve faults into the documentation.")
    parser.add_argument(
        "--expected", action="store_true", help="break nothing: write what the tests expect, without times"
    )
    answers = {} if parser.parse_args(arguments).expected else measured()
    page = PAGE.read_text(encoding="utf-8")
    before, rest = page.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(f"{before}{BEGIN}\n{table(answers)}\n{END}{after}", encoding="utf-8")


def measured() -> dict[str, Answer]:
    torch, answers = Cluster().torch_path, {}
    for fault in LOCAL:
        with tempfile.TemporaryDirectory(prefix="faults-") as folder, broken(fault, Path(folder), torch) as run:
            answer = answers[fault.name] = explained(fault, run, Path(folder))
        print(f"{fault.name}: {'right' if answer.is_right(fault) else 'WRONG'}, {answer.seconds:.1f} s", flush=True)
    return answers


if __name__ == "__main__":
    main(sys.argv[1:])
