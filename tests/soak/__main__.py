"""`make soak HOURS=n SEED=s`: trainings and an RL job on the local cluster, under random faults.

Stop it at any time: the same command continues with the next fault, until all cycles together have taken the hours. A
run writes into <cache>/soak; only its results go to benchmarks/results/soak.json, beside those of other seeds.
"""

import argparse
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.tables import plain
from tests.cluster.paths import CHECKOUT, Paths
from tests.soak.journal import read_journal
from tests.soak.report import check_rows, fault_rows, run_rows, summary, with_run
from tests.soak.run import Soak, print_line

RESULT = CHECKOUT / "benchmarks" / "results" / "soak.json"


def report(journal: Path) -> int:
    """Write and print the results of this seed. Returns 1 if an invariant was broken."""
    result = summary(read_journal(journal))
    if not result["pieces"]:
        print("stopped before the first fault: there is nothing to report, and the former results stay")
        return 0
    earlier = json.loads(RESULT.read_text())["runs"] if RESULT.exists() else []
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"runs": with_run(earlier, result)}, indent=1) + "\n")
    for rows in (run_rows([result]), fault_rows([result]), check_rows([result])):
        print(plain(rows), end="\n\n")
    for violation in result["violations"]:
        evidence = journal.parent.parent / violation["evidence"]
        print(f"violation of {violation['invariant']}: {violation['sentences'][0]}\n  see {evidence}")
    print(f"written: {RESULT.relative_to(CHECKOUT)}; the journal: {journal}")
    return 1 if result["violations"] else 0


def stop(*_: Any) -> None:
    raise KeyboardInterrupt


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--hours", type=float, default=1.0, help="how long all pieces take together (default: 1)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, stop)
    soak = Soak(options.seed, Paths.from_environment().cache / "soak")
    try:
        soak.run(options.hours)
    except KeyboardInterrupt:
        print_line("stopped; the same command continues")
    finally:
        soak.discard()
    return report(soak.journal)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
