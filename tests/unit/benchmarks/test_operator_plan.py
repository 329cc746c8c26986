"""The sessions of bench-operator, and the objects that are applied in them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from benchmarks.goals import check
from benchmarks.journal import Journal
from benchmarks.operator import manifests, settings
from benchmarks.operator.__main__ import missing
from benchmarks.operator.goals import GOALS
from benchmarks.operator.plan import LIVES, SIZES, Case, Choice, Session, System, plan
from benchmarks.operator.session import METRICS
from benchmarks.operator.settings import COUNTED, Files, User
from benchmarks.records import UNITS, Sample, sum_up

UNDERSTUDY, JOBSET = System.UNDERSTUDY, System.JOBSET


def test_the_systems_of_a_size_take_turns() -> None:
    chosen = plan(Choice(cases=(Case.CREATE,), sizes=(100,), runs=2))

    assert [(x.system, x.run) for x in chosen] == [(UNDERSTUDY, 0), (JOBSET, 0), (UNDERSTUDY, 1), (JOBSET, 1)]


def test_the_cases_of_one_life_are_one_session() -> None:
    chosen = plan(Choice(cases=(Case.CREATE, Case.STATUS, Case.DELETE), systems=(UNDERSTUDY,), sizes=(100,), runs=1))

    assert chosen == [Session(UNDERSTUDY, 100, 0, (Case.CREATE, Case.STATUS, Case.DELETE))]


def test_the_expected_duration_is_about_the_measured_one() -> None:
    # one run of all cases took 118 and 124 minutes
    assert 100 * 60 < sum(x.expected_s for x in plan(Choice(runs=1))) < 140 * 60


def test_features_that_jobset_lacks_are_not_measured() -> None:
    requests = {case for x in plan(Choice(systems=(JOBSET,))) for case in x.cases}

    assert requests == set(Case) - {Case.STATUS, Case.START, Case.JOBS_RECREATE, Case.BESIDE}


def test_a_restart_in_place_of_jobset_is_a_session_of_its_own() -> None:
    alone = [x for x in plan(Choice(runs=1)) if Case.IN_PLACE in x.cases]

    assert {x.in_place_alone for x in alone if x.system is JOBSET} == {True}
    assert {x.in_place_alone for x in alone if x.system is UNDERSTUDY} == {False}


def test_idle_and_start_are_measured_at_the_largest_size_unless_sizes_are_chosen() -> None:
    def sizes(choice: Choice) -> set[int]:
        return {x.size for x in plan(choice) if Case.REST in x.cases}

    assert sizes(Choice()) == {5000}
    assert sizes(Choice(sizes=(100,))) == {100}


@pytest.mark.parametrize("size", [2000, 100])
def test_many_jobs_have_one_pod_each(size: int) -> None:
    (session,) = plan(Choice(cases=(Case.MANY_CREATE,), systems=(UNDERSTUDY,), sizes=(size,), runs=1))

    assert (session.jobs, session.pods_of_a_job) == (size, 1)


def test_a_job_that_recovers_during_a_creation_is_a_small_one() -> None:
    (session,) = plan(Choice(cases=(Case.BESIDE,), systems=(UNDERSTUDY,), runs=1))

    assert (session.size, session.jobs, session.pods_of_a_job) == (5000, 1, 10)


def test_each_systems_own_limits_are_kept_in_cases_of_their_own_which_share_a_cluster(tmp_path: Path) -> None:
    def limits(shipped: bool) -> list[str]:
        command = settings.controller_manager(Files(tmp_path, tmp_path), shipped=shipped)
        return [flag.partition("=")[0] for flag in command if "qps" in flag or "syncs" in flag or "burst" in flag]

    shipped = [x.shipped for x in plan(Choice())]
    visits = [now for before, now in zip([False, *shipped], shipped, strict=False) if before is not now]
    assert visits == [True, False]
    assert (len(limits(shipped=False)), limits(shipped=True)) == (3, [])


def test_without_a_choice_all_cases_run() -> None:
    whole = plan(Choice())

    assert {case for x in whole for case in x.cases} == set(Case)
    assert len(whole) == len(set(whole))
    assert SIZES.keys() == {case for together in LIVES for case in together} == set(Case)


def test_completed_sessions_are_not_run_again(tmp_path: Path) -> None:
    life = (Case.CREATE, Case.STATUS, Case.DELETE)
    sessions = plan(Choice(cases=life, systems=(UNDERSTUDY,), sizes=(100,), runs=2))
    journal = Journal(tmp_path / "samples.json", {}, resume=False)
    journal.add(Sample("understudy", case, 100, 0) for case in life)
    journal.add([Sample("understudy", "create", 100, 1)])

    assert missing(sessions, journal) == [Session(UNDERSTUDY, 100, 1, (Case.STATUS, Case.DELETE))]


def test_every_goal_has_a_measurement() -> None:
    for goal in GOALS:
        requests = [x for x in plan(Choice()) if goal.case in x.cases and x.size == goal.size]
        assert {x.system.value for x in requests} >= {"understudy", goal.peer} - {""}
        assert goal.metric in UNITS


def test_a_goal_of_the_table_can_be_met() -> None:
    seconds = {"understudy": 14.0, "jobset": 16.0}
    records = sum_up(Sample(name, "recreate", 1000, 0, {"running_s": value}) for name, value in seconds.items())
    (recreate,) = (x for x in check(GOALS, records) if x.goal.case == "recreate")

    assert recreate.verdict.value == "met"


def test_every_metric_has_a_unit() -> None:
    assert {metric for metrics in METRICS.values() for metric in metrics} <= UNITS.keys()


# Applied objects ------------------------------------------------------------------------------------------------------


def test_ours_without_a_launcher_is_jobsets_manifest_under_another_header() -> None:
    own, others = manifests.without_launcher("job", 7), manifests.jobset("job", 7)

    assert own["spec"] == others["spec"]
    assert (own["kind"], others["kind"]) == ("TrainingJob", "JobSet")


def test_all_jobs_have_the_same_pods() -> None:
    made = (manifests.training_job("job", 7), manifests.jobset("job", 7), manifests.without_launcher("job", 7))
    templates = [manifest["spec"]["replicatedJobs"][0]["template"]["spec"] for manifest in made]

    assert [x["parallelism"] for x in templates] == [7, 7, 7]
    containers = [x["template"]["spec"]["containers"] for x in templates]
    assert containers[0] == containers[1] == containers[2]


def test_a_jobset_sets_the_defaults_of_its_webhooks() -> None:
    spec = manifests.jobset("job", 7)["spec"]
    job = spec["replicatedJobs"][0]["template"]["spec"]

    assert spec["network"]["enableDNSHostnames"] is True
    assert spec["successPolicy"]["operator"] == "All"
    assert spec["startupPolicy"]["startupPolicyOrder"] == "AnyOrder"
    assert (job["completionMode"], job["backoffLimit"]) == ("Indexed", 0)


# Setup of the cluster -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> Files:
    files = Files(tmp_path, tmp_path / "bin")
    files.write()
    return files


def test_each_program_is_a_user_of_its_own(files: Files) -> None:
    rows = [line.split(",") for line in (files.folder / "tokens.csv").read_text().splitlines()]

    assert [row[1] for row in rows] == [str(user) for user in User]
    assert len({row[0] for row in rows}) == len(User)
    for user in User:
        config = json.loads(files.kubeconfig(user).read_text())
        assert config["users"][0]["user"]["token"] == files.tokens[user]


def test_the_audit_log_has_the_controllers_requests_and_no_others(files: Files) -> None:
    rules = json.loads((files.folder / "audit-policy.json").read_text())["rules"]

    logged = [rule for rule in rules if rule["level"] != "None"]
    assert [rule["users"] for rule in logged] == [[str(user) for user in COUNTED]]
    assert rules[-1] == {"level": "None"}
    assert not {User.BENCHMARK, User.KWOK, User.SCHEDULER} & set(COUNTED)


def test_kwok_ends_no_pod_by_itself() -> None:
    stages = [x for x in yaml.safe_load_all(_stages()) if x["kind"] == "Stage"]
    of_pods = {x["metadata"]["name"]: x["spec"] for x in stages if x["spec"]["resourceRef"]["kind"] == "Pod"}

    assert of_pods.keys() == {"pod-running", "pod-gone"}
    assert [name for name, spec in of_pods.items() if "Succeeded" in str(spec["next"])] == []
    assert of_pods["pod-running"]["delay"] == of_pods["pod-gone"]["delay"]


def _stages() -> str:
    return (Path(settings.__file__).parent / "stages.yaml").read_text()
