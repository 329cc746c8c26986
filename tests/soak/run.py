"""Runs a soak on the local cluster: see __main__.py. journal.py has the states, draw.py and invariants.py decide.

A cycle is a pause, a fault, the recovery of all jobs, and the checks. Each failure in a cycle is a violation with its
evidence. A job that has broken an invariant for good is deleted and applied again.
"""

import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.cluster import Cluster, ClusterDown, ClusterError
from tests.cluster.paths import CHECKOUT
from tests.e2e.lanes import NODES, SYSTEM_NODE
from tests.e2e.prepare import prepare_lanes
from tests.e2e.report import Token
from tests.e2e.rl import clients
from tests.e2e.truth import Observed, differences, is_open
from tests.e2e.undisturbed import differences as loss_differences
from tests.e2e.undisturbed import undisturbed_losses
from tests.e2e.waiting import NotInTime, wait_until
from tests.soak.draw import Draw, Expectation, Kind, Pod, draw, expectation, hit
from tests.soak.evidence import collect, samples
from tests.soak.faults import NoTarget, has_netem, made, speed_up
from tests.soak.invariants import (
    exceeds_budget,
    expected_fault,
    pauses_between_rounds,
    ranks_twice,
    unaccounted,
    untruthful,
)
from tests.soak.jobs import (
    BUDGET,
    SoakRl,
    SoakTraining,
    create_namespaces,
    ensure_volumes,
    make_rl,
    make_trainings,
    pods_of,
)
from tests.soak.journal import Raw, Stage, append_entry, read_journal, state_of

#: A new pod that imports torch on a busy machine takes a minute; a job that has lost its majority waits for fences.
RECOVERY_LIMIT_S = 300.0
#: Steps of each training after a fault, before it counts as recovered.
STEPS_AFTER = 3
MOST_VIOLATIONS = 20
RENEWING = ("losses", "ranks", "budget", "goodput", "recovery")

Problems = dict[str, list[str]]


def print_line(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


@dataclass(frozen=True)
class Before:
    """A training just before a fault. known: `detectedAt` of its recoveries."""

    token: Token
    known: frozenset[str]
    expected: Expectation


class Soak:
    """One process's part of a run."""

    def __init__(self, seed: int, folder: Path) -> None:
        self.seed, self.folder = seed, folder
        self.journal = folder / f"seed-{seed}.jsonl"
        self.cluster = Cluster(nodes=NODES)
        self.trainings = make_trainings(self.cluster, folder)
        self.rl = make_rl(self.cluster)
        self.jobs: dict[str, SoakTraining | SoakRl] = {**self.trainings, "rl": self.rl}
        self.losses: dict[str, list[float]] = {}

    def run(self, hours: float) -> None:
        """Run until the journal's cycles have taken the hours."""
        while (stage := state_of(self.entries()).stage(hours)) is not Stage.REPORT:
            state = state_of(self.entries())
            if stage is Stage.UNDO:
                assert state.open is not None
                number, kind = state.open["number"], state.open["kind"]
                append_entry(self.journal, "outcome", number=number, kind=kind, result="interrupted")
            elif sum(entry["event"] == "violation" for entry in self.entries()) >= MOST_VIOLATIONS:
                print_line(f"{MOST_VIOLATIONS} violations: the run stops here")
                return
            else:
                if not self.losses:
                    self.prepare()
                self.cycle(state.next_number)

    def entries(self) -> list[Raw]:
        return read_journal(self.journal)

    # The jobs -------------------------------------------------------------------------------------------------------

    def prepare(self) -> None:
        ensure_volumes(self.cluster, self.trainings.values())
        prepare_lanes()
        self.heal_network()
        create_namespaces(self.cluster, self.jobs)
        for name, training in self.trainings.items():
            self.losses[name] = undisturbed_losses(self.cluster, training.steps, training.world_size, print_line)
        for name in self.trainings:
            self.begin(name)
        self.rl.apply()
        self.rl.wait_for_whole_updates()
        commit = subprocess.run(
            ["git", "describe", "--always", "--dirty"], cwd=CHECKOUT, capture_output=True, text=True, check=True
        ).stdout.strip()
        network = "netem" if has_netem(self.cluster, self.nodes()[0]) else "tbf and iptables, because there is no netem"
        append_entry(self.journal, "began", seed=self.seed, commit=commit, network=network, at=time.time())

    def nodes(self) -> list[str]:
        return [node for node in self.cluster.nodes() if node != SYSTEM_NODE]

    def heal_network(self) -> None:
        """Undo the fault of a run that was killed."""
        for node in self.nodes():
            speed_up(self.cluster, node)

    def begin(self, name: str) -> None:
        print_line(f"{name}: a new life")
        training = self.trainings[name]
        training.apply()

        def whole(status: Raw) -> bool:
            spares = status.get("spares", {})
            return status.get("phase") == "Running" and spares.get("ready", 0) >= spares.get("desired", 0)

        training.wait_for_status("the job runs with all its spares", whole, RECOVERY_LIMIT_S)
        training.wait_for_step(STEPS_AFTER, RECOVERY_LIMIT_S)

    def renew(self, name: str) -> None:
        if name == "rl":
            self.rl.forget()
            self.rl.apply()
            self.rl.wait_for_whole_updates()
        else:
            self.trainings[name].forget()
            self.begin(name)

    def end_lives(self, number: int) -> None:
        """Let the trainings with few remaining steps end, and begin the next life of each."""
        for name, training in self.trainings.items():
            if training.is_near_its_end():
                training.end()
                found = loss_differences(training.report(), self.losses[name])
                self.note_violations(number, name, {"losses": found}, {})
                append_entry(self.journal, "life", job=name, steps=max(entry.step for entry in training.report()))
                self.renew(name)
        if self.rl.is_near_its_end():
            self.renew("rl")

    def discard(self) -> None:
        for job in self.jobs.values():
            with suppress(ClusterError):
                job.discard()

    # A cycle --------------------------------------------------------------------------------------------------------

    def cycle(self, number: int) -> None:
        began = time.time()
        time.sleep(draw(self.seed, number, ()).pause_s)
        pods = self.pods()
        drawn = draw(self.seed, number, pods)
        facts = {**asdict(drawn), "kind": drawn.kind.value}
        append_entry(self.journal, "drawn", **facts, pods=[asdict(pod) for pod in pods], at=time.time())
        print_line(
            f"{number}: {drawn.kind.value} {drawn.target.name if drawn.target else drawn.node} {drawn.hold_s:g} s"
        )
        fields: Raw = {"result": "skipped", "reason": "no pod can be its target"}
        if not drawn.skipped:
            try:
                fields = self.strike(drawn, pods, facts)
            except NoTarget as reason:
                fields = {"result": "skipped", "reason": str(reason)}
            except (ClusterError, NotInTime) as error:
                self.note_violations(number, "cluster", {"recovery": [str(error)]}, facts)
                fields = {"result": "made"}
                self.start_over()
        try:
            self.end_lives(number)
            append_entry(
                self.journal,
                "samples",
                at=time.time(),
                values=samples(self.cluster, {job.namespace: name for name, job in self.jobs.items()}),
            )
        except (ClusterError, NotInTime) as error:
            self.note_violations(number, "cluster", {"recovery": [str(error)]}, facts)
            self.start_over()
        seconds = round(time.time() - began, 1)
        append_entry(self.journal, "outcome", number=number, kind=drawn.kind.value, seconds=seconds, **fields)

    def pods(self) -> list[Pod]:
        return [pod for name, job in self.jobs.items() for pod in pods_of(name, job)]

    def strike(self, drawn: Draw, pods: Sequence[Pod], facts: Raw) -> Raw:
        """Cause the fault, wait until all jobs have recovered, and check them. Returns the outcome. Raises NoTarget."""
        before = {name: self.before(name, drawn, pods) for name in self.trainings}
        at = time.time()
        of_rl, answers = self.strike_rl(drawn) if hit(drawn, "rl", pods) else (self.strike_others(drawn), 0)
        undone_at = time.time()
        found_by_job: dict[str, Problems] = {"rl": of_rl}
        paused: dict[str, float] = {}
        for name in self.trainings:
            found_by_job[name] = self.recovered(name, before[name], undone_at)
            if not found_by_job[name]:
                found_by_job[name], paused_s = self.checks(name, drawn, pods, before[name], at)
                paused |= {name: round(paused_s, 3)} if paused_s else {}
        checked = [invariant for found in found_by_job.values() for invariant in found]
        for name, found in found_by_job.items():
            self.note_violations(drawn.number, name, found, facts)
            if any(found.get(invariant) for invariant in RENEWING):
                self.renew(name)
        return {"result": "made", "paused_s": paused, "checked": checked, "answers": answers}

    def strike_others(self, drawn: Draw) -> Problems:
        with made(drawn, self.cluster, self.jobs):
            time.sleep(drawn.hold_s)
        return self.checks_of_rl()

    def strike_rl(self, drawn: Draw) -> tuple[Problems, int]:
        """Run clients that call the rollout servers. Afterwards an update has to succeed."""
        try:
            with clients(self.rl) as seen:
                found = self.strike_others(drawn)
                try:
                    self.rl.wait_for_whole_updates()
                except NotInTime as error:
                    return {"recovery": [str(error)]}, seen["whole"]
        except NotInTime:
            raise
        except AssertionError as error:
            return {"answers": [str(error)]}, 0
        return {**found, "recovery": [], "answers": []}, seen["whole"]

    def checks_of_rl(self) -> Problems:
        return {"budget": ["the job has failed"] if self.rl.status().get("phase") == "Failed" else []}

    def before(self, name: str, drawn: Draw, pods: Sequence[Pod]) -> Before:
        training = self.trainings[name]
        known = frozenset(entry["detectedAt"] for entry in training.status().get("recoveries", ()))
        return Before(training.report()[-1].token, known, expectation(drawn, name, pods))

    def recovered(self, name: str, before: Before, undone_at: float) -> Problems:
        """Wait until the training has made some steps, in a new round if the fault stops it, and status shows it."""
        training = self.trainings[name]

        def goes_on() -> bool:
            new = [entry for entry in training.report() if entry.event == "step" and entry.time > undone_at]
            if before.expected is Expectation.STOPS:
                new = [entry for entry in new if entry.token > before.token]
            return len(new) >= STEPS_AFTER

        def reported() -> bool:
            with suppress(ClusterDown):  # an API server that has just started may still refuse
                status, newest = training.status(), training.report()[-1].token
                is_current = status.get("round") == newest[2]  # else no operator leads: the fault may have killed it
                is_over = not any(map(is_open, status.get("recoveries", ())))
                return is_current and is_over and status.get("phase") == "Running"
            return False

        try:
            wait_until(f"{name} continues", goes_on, RECOVERY_LIMIT_S, seen=training.pods_text)
            wait_until(f"{name} is Running", reported, RECOVERY_LIMIT_S, seen=training.pods_text)
        except NotInTime as error:
            return {"recovery": [str(error)]}
        return {}

    def checks(self, name: str, drawn: Draw, pods: Sequence[Pod], before: Before, at: float) -> tuple[Problems, float]:
        """The sentences of each invariant, and the pause of the training."""
        training = self.trainings[name]
        status, report, steps = training.status(), training.report(), training.reported_steps()
        observed = Observed(at, before.known, steps)
        # The training reports its steps on the volume that this fault fills.
        lacks_steps = drawn.kind is Kind.VOLUME and drawn.target is not None and drawn.target.job == name
        truth = untruthful(status.get("recoveries", ()), steps, at, lacks_steps=lacks_steps)
        recovery = []
        if before.expected is Expectation.RUNS_ON:
            truth += differences(None, observed, status)
            if report[-1].token != before.token:
                recovery.append(f"a new round began, {report[-1].token}, and the fault is none of this job")
        elif fault := expected_fault(drawn, name, pods, training.workers):
            truth += differences(fault, observed, status)
        paused = [pause.seconds for pause in pauses_between_rounds(steps) if pause.first > at]
        found = {
            "losses": loss_differences(report, self.losses[name]),
            "ranks": ranks_twice(training.starts()),
            "budget": exceeds_budget(status, BUDGET),
            "truth": truth,
            "goodput": unaccounted(status),
            "recovery": recovery,
        }
        return found, max(paused, default=0.0)

    def note_violations(self, number: int, job: str, found: Mapping[str, Sequence[str]], facts: Raw) -> None:
        broken = {invariant: sentences for invariant, sentences in found.items() if sentences}
        if not broken:
            return
        evidence = self.folder / f"seed-{self.seed}-evidence" / f"{number}-{job}"
        collect(self.cluster, evidence, broken, self.trainings[job].folder if job in self.trainings else None)
        for invariant, sentences in broken.items():
            shortened = [sentence[:300] for sentence in sentences[:5]]
            fields = {"job": job, "invariant": invariant, "sentences": shortened, "fault": facts}
            folder = str(evidence.relative_to(self.folder.parent))
            append_entry(self.journal, "violation", number=number, **fields, evidence=folder, at=time.time())
            print_line(f"VIOLATION of {invariant} by {job}: {shortened[0]}")

    def start_over(self) -> None:
        """Restore after a fault that the cluster itself has not survived."""
        print_line("the cluster is repaired, and all jobs are recreated")
        self.cluster.up()
        self.heal_network()
        for name in self.jobs:
            self.renew(name)
