"""`make demo`: one training job recovers from every fault on a real Kubernetes; a table, and build/demo.json.

The table's times are measured from outside, next to those of the job's own status. The demo fails if status is not
true (see truth.py), if the parts of the job's time are not its wall time, and if the loss of any step is not that of a
run without faults.
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.cluster import Cluster, ClusterError
from tests.e2e import acts
from tests.e2e.objects import read_log
from tests.e2e.prepare import prepare
from tests.e2e.success import Exits, exit_codes, finish_and_watch_exits, wait_for_end
from tests.e2e.training import CHECKOUT, LABEL_ROLE, Training
from tests.e2e.truth import Raw, unix
from tests.e2e.undisturbed import differences, undisturbed_losses
from tests.e2e.waiting import wait_until

NAMESPACE = "understudy-demo"
RESULT = CHECKOUT / "build" / "demo.json"
SUM_ERROR = 0.01
WARM_LIMIT_S = 120.0


def print_line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def wait_for_warm_spare(training: Training) -> None:
    """Wait until the job is complete, and its spare has a node of its own and has imported torch. On a machine's first
    run, the import takes a while.
    """
    acts.give_spare_a_node(training)

    def is_warm() -> bool:
        spares = [x for x in acts.running_pods(training) if x["metadata"]["labels"][LABEL_ROLE] == "spare"]
        logs = [read_log(training.cluster, training.namespace, x["metadata"]["name"], "trainer") for x in spares]
        return bool(logs) and all("the fork server is ready" in log for log in logs)

    wait_until("the spare is warm", is_warm, WARM_LIMIT_S, seen=training.pods_text)


def play(training: Training) -> tuple[list[acts.Act], Exits]:
    """All acts on one job, up to its end."""
    played = []

    def report(act: acts.Act) -> None:
        played.append(act)
        print_line(f"  {act.fault} -> {act.strategy}: a new round stepped after {act.resumed_s:.2f} s")

    print_line("apply: 3 active pods of 2 workers, 1 spare")
    training.apply()
    wait_for_warm_spare(training)
    print(training.cluster.kubectl("-n", training.namespace, "get", "tj"))
    print_line("SIGKILL one worker")
    report(acts.kill_worker(training))
    print_line("delete an active pod, grace 0")
    report(acts.delete_pod(training))
    wait_for_warm_spare(training)
    print_line("power off a node")
    act = acts.power_off_node(training)
    report(act)
    acts.settle(training)
    training.cluster.restore(act.victim.node)
    wait_for_warm_spare(training)
    print_line("operator scaled to 0; SIGKILL of all containers of a pod")
    report(acts.kill_containers_without_operator(training))
    wait_for_warm_spare(training)
    print_line(f"freeze a node for {acts.FREEZE_S:g} s, then thaw it")
    act, _ = acts.freeze_node(training)
    report(act)
    print_line("wait for the end of the training")
    exits = finish_and_watch_exits(training, 120)
    wait_for_end(training)
    return played, exits


def table(played: list[acts.Act]) -> str:
    """The acts as a table: measured from outside, except for the last column, the `pauseSeconds` of status."""
    rows = [("ACT", "FAULT", "STRATEGY", "DETECTED S", "RESUMED S", "LOST STEPS", "PAUSED S", "STATUS S")]
    rows += [
        (
            act.act,
            act.fault,
            act.strategy,
            f"{act.detected_s:.2f}",
            f"{act.resumed_s:.2f}",
            str(act.lost_steps),
            f"{act.paused_s:.2f}",
            f"{act.status_s:.2f}",
        )
        for act in played
    ]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def write_result(played: list[acts.Act], path: Path) -> None:
    columns = ("act", "fault", "strategy", "detected_s", "resumed_s", "lost_steps", "paused_s", "status_s")
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [{column: getattr(act, column) for column in columns} for act in played]
    path.write_text(json.dumps(rows, indent=1) + "\n")


def account(status: Raw) -> str:
    """What the time of the ended job went to. Raises AssertionError if the parts are not the wall time within 1 %."""
    goodput = status["goodput"]
    wall_s = unix(status["completionTime"]) - unix(goodput["startTime"])
    parts, total_s = goodput["seconds"], sum(goodput["seconds"].values())
    if abs(total_s - wall_s) > SUM_ERROR * wall_s:
        found = f"the parts of the job's time are {total_s:.1f} s, its wall time is {wall_s:.1f} s"
        raise AssertionError(f"{found}: {parts}")
    shown = ", ".join(f"{part} {seconds:.1f} s" for part, seconds in parts.items())
    return f"the job's time, {wall_s:.1f} s: {shown}; ETTR {goodput['ettr']:.3f}"


def require_losses(found: Sequence[str]) -> None:
    """Raises AssertionError if the losses differ from those of a run without faults."""
    if found:
        wrong = "the losses are not those of an undisturbed run: a recovery has skipped, repeated or changed a step"
        raise AssertionError("\n".join([wrong, *found]))


def run(cluster: Cluster) -> None:
    cluster.kubectl("create", "namespace", NAMESPACE, check=False)
    training = Training(cluster, CHECKOUT / "build" / "demo-storage", NAMESPACE)
    training.delete()
    played, exits = play(training)
    codes = exit_codes(training)
    done = training.report()[-1]
    expected = undisturbed_losses(cluster, training.steps, training.world_size, print_line)
    found = differences(training.report(), expected)
    write_result(played, RESULT)
    print(f"\n{table(played)}\n")
    print(cluster.kubectl("-n", NAMESPACE, "get", "tj,pods"))
    print(
        f"all containers exited within {exits.slowest_s:.2f} s of the last worker, codes {sorted(set(codes.values()))}"
    )
    print(f"written: {RESULT.relative_to(CHECKOUT)}")
    print(account(training.status()))
    require_losses(found)
    print(f"loss of the last step, {done.step}: {done.loss:.7f}; the loss of every step is that of an undisturbed run")
    print(f"look around: tests/cluster/cluster kubectl -n {NAMESPACE} get tj,pods; stop it all: make cluster-down")


def main() -> int:
    try:
        cluster = prepare()
        run(cluster)
    except (ClusterError, AssertionError) as error:
        print(error, file=sys.stderr)
        logs = Cluster().logs(CHECKOUT / "build" / "demo-logs")
        print(f"the logs of all pods and components: {logs}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
