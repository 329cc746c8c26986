"""`drill`: the refusals, the result, the manifests of --schedule, and the verb against a server."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.cli import samples
from tests.unit.cli.server import Answer, Scripted, scripted
from tests.unit.cli.test_entry import JOBS, call, kubeconfig
from understudy_cli.command_errors import NotPossible, WrongCall
from understudy_cli.facts import DrillRecord, Job
from understudy_cli.reading import read_job, read_pod
from understudy_cli.views.drill_schedule import schedule_manifests
from understudy_cli.views.drills import DrillRow, check_drill, pod_to_annotate, result
from understudy_protocol import enums

PODS = "/api/v1/namespaces/team-a/pods"
BEFORE = tuple(map(read_pod, samples.pods()))
#: The operator has decided at 11:59:30.
STARTED = DrillRecord("Pod 2026-11-20T11:59:30Z", 1795175970.0, ("llm-workers-0-1",), "node-b", "")


def job(**status: Any) -> Job:
    return read_job(samples.drillable(**status))


def recovered(**changes: Any) -> dict[str, Any]:
    return samples.drilled() | changes


# Whether --------------------------------------------------------------------------------------------------------------


def test_a_job_that_does_not_allow_drills_is_answered_with_the_command_that_allows_them() -> None:
    with pytest.raises(NotPossible) as raised:
        check_drill(read_job(samples.job()))
    assert str(raised.value) == (
        "job llm does not allow drills. If it may be broken on purpose: "
        """kubectl patch tj llm -n team-a --type merge -p '{"spec":{"drills":"Allowed"}}'"""
    )


def injected(**annotations: str) -> Job:
    raw = samples.drillable()
    return read_job(raw | {"kind": "InjectedJob", "spec": {"annotations": annotations}})


def test_an_injected_job_allows_drills_by_an_annotation_of_its_pods() -> None:
    with pytest.raises(NotPossible, match=r"set the annotation understudy\.dev/drills: Allowed in its pod template"):
        check_drill(injected())
    check_drill(injected(drills="Allowed"))


def test_the_pod_with_the_lowest_rank_takes_the_request_for_an_injected_job() -> None:
    assert pod_to_annotate(injected(), BEFORE).group_rank == 0
    with pytest.raises(NotPossible, match="no pod has ranks"):
        pod_to_annotate(injected(), [])


def test_a_job_that_has_ended_cannot_be_broken() -> None:
    with pytest.raises(NotPossible, match="has ended"):
        check_drill(job(conditions=[samples.condition("Failed", "True", "x")]))


# The result -----------------------------------------------------------------------------------------------------------


def test_the_result_has_the_times_since_the_operator_has_decided() -> None:
    found = result(job(), STARTED, BEFORE, job(recoveries=[recovered()]).recoveries, set())
    assert found is not None
    assert (found.fault, found.remark) == ("Pod", "")
    assert found.rows == (DrillRow("rank 2, pod llm-workers-0-1 on node-b", "0.40 s", "2.20 s", "5", "SpareSwap"),)


def test_there_is_no_result_before_the_recovery_has_ended() -> None:
    earlier = job().recoveries
    known = {recovery.detected_at for recovery in earlier}
    assert result(job(), STARTED, BEFORE, earlier, known) is None
    is_open = job(recoveries=[recovered(resumedAt=None, pauseSeconds=None)]).recoveries
    assert result(job(), STARTED, BEFORE, is_open, known) is None


def test_another_fault_at_the_same_time_is_not_the_drills() -> None:
    other = job(recoveries=[recovered(reason="its pod is lost")]).recoveries
    assert result(job(), STARTED, BEFORE, other, set()) is None
    elsewhere = recovered(cause={"pod": "llm-spare-x7k2p"})
    assert result(job(), STARTED, BEFORE, job(recoveries=[elsewhere]).recoveries, set()) is None


def test_a_drill_on_a_worker_has_one_recovery() -> None:
    drill = DrillRecord("Process 2026-11-20T11:59:30Z", 1795175970.0, ("llm-workers-0-1",), "node-b", "")
    killed = recovered(fault="Process", strategy="InPlace", reason="a drill: restart 1 of 10 within 1 h")
    found = result(job(), drill, BEFORE, job(recoveries=[killed]).recoveries, set())
    assert found is not None
    assert [row.strategy for row in found.rows] == ["InPlace"]


def test_without_ranks_the_result_is_the_election() -> None:
    """The coordinator was a spare: no worker restarts."""
    before = (BEFORE[2], read_pod(samples.pod("llm-spare-c", "node-e", coordinator=True)))
    drill = DrillRecord("Coordinator 2026-11-20T11:59:30Z", 1795175970.0, ("llm-spare-c",), "node-e", "")
    assert result(job(coordinator={"podName": "llm-spare-c"}), drill, before, (), set()) is None
    found = result(job(coordinator={"podName": "llm-workers-0-1"}), drill, before, (), set())
    assert found is not None
    assert [(row.broken, row.strategy, row.steps_lost) for row in found.rows] == [("pod llm-spare-c", "Election", "0")]
    assert "llm-workers-0-1 coordinates" in found.remark


# --schedule -----------------------------------------------------------------------------------------------------------


def test_the_account_of_the_cron_job_may_change_this_job_alone() -> None:
    account, role, binding, cron = schedule_manifests(job(), enums.Drill.POD, "0 3 * * 1", "example.com/cli:1")
    assert role["rules"][0] == {
        "apiGroups": ["understudy.dev"],
        "resources": ["trainingjobs"],
        "verbs": ["get", "list", "watch", "patch"],
        "resourceNames": ["llm"],
    }
    assert {verb for rule in role["rules"][1:] for verb in rule["verbs"]} == {"list", "watch"}
    names = {account["metadata"]["name"], binding["roleRef"]["name"], binding["subjects"][0]["name"]}
    pod = cron["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    assert names == {"llm-drill-pod", pod["serviceAccountName"]}
    assert pod["containers"][0]["command"] == ["understudy", "drill", "llm", "--fault", "pod", "--yes"]
    assert (cron["spec"]["schedule"], cron["spec"]["concurrencyPolicy"]) == ("0 3 * * 1", "Forbid")


def test_the_account_for_an_injected_job_may_change_pods_and_not_the_injectedjob() -> None:
    _, role, *_ = schedule_manifests(injected(drills="Allowed"), enums.Drill.POD, "0 3 * * 1", "example.com/cli:1")
    assert [(rule["resources"], rule["verbs"]) for rule in role["rules"]] == [
        (["injectedjobs"], ["get", "list", "watch"]),
        (["recoveries"], ["list", "watch"]),
        (["pods"], ["list", "watch", "patch"]),
    ]


def test_a_long_name_fits() -> None:
    long = read_job(samples.drillable() | {"metadata": {"name": "a" * 63, "namespace": "team-a"}})
    name = schedule_manifests(long, enums.Drill.COORDINATOR, "@weekly", "i")[0]["metadata"]["name"]
    assert len(name) == 52
    assert re.fullmatch("a{25}-[0-9a-f]{8}-drill-coordinator", name)


def test_the_schedules_of_two_jobs_whose_long_names_begin_alike_do_not_replace_each_other() -> None:
    names = {
        schedule_manifests(
            read_job(samples.drillable() | {"metadata": {"name": f"llama-pretraining-with-long-context-run-{run}"}}),
            enums.Drill.COORDINATOR,
            "@weekly",
            "i",
        )[-1]["metadata"]["name"]
        for run in (1, 2)
    }
    assert len(names) == 2


@pytest.mark.parametrize(
    ("cron", "image", "text"), [("weekly", "i", "--schedule 'weekly'"), ("@weekly", "", "--image")]
)
def test_a_wrong_schedule_is_named(cron: str, image: str, text: str) -> None:
    with pytest.raises(WrongCall, match=text):
        schedule_manifests(job(), enums.Drill.POD, cron, image)


# The verb -------------------------------------------------------------------------------------------------------------


class Operator:
    """Answers a request in status.drill once the job is annotated, and reports a recovery unless it rejects it."""

    def __init__(self, refusal: str = "") -> None:
        self.refusal = refusal
        self.server: Scripted | None = None

    def job(self) -> dict[str, Any]:
        assert self.server is not None
        request = self.server.patches[-1][2]["metadata"]["annotations"]["understudy.dev/drill"]
        drill = {"request": request, "at": "2026-11-20T11:59:30.000000Z", "pods": ["llm-workers-0-1"]}
        if self.refusal:
            return samples.drillable(drill=drill | {"refusal": self.refusal})
        return samples.drillable(drill=drill, recoveries=[samples.recovery(), samples.swap(), recovered()])


def drilled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, operator: Operator, *words: str) -> tuple[int, Scripted]:
    listed = Answer({"metadata": {"resourceVersion": "7"}, "items": samples.pods()})
    answers = {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.drillable())],
        f"{JOBS}/recoveries": [Answer({}, 404)],
        "/apis/understudy.dev/v1alpha1": [Answer({"resources": []})],
        PODS: [listed, listed, Answer(stays=True)],
    }
    with scripted(answers) as server:
        operator.server = server
        server.answers[f"{JOBS}/trainingjobs"] = [
            Answer(make=lambda: {"metadata": {"resourceVersion": "7"}, "items": [operator.job()]}),
            Answer(stays=True),
        ]
        config = kubeconfig(tmp_path, server.url)
        return call(monkeypatch, "drill", "llm", *words, "--kubeconfig", config), server


def test_the_request_is_an_annotation_of_the_job_and_the_result_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, server = drilled(monkeypatch, tmp_path, Operator(), "--fault", "pod", "--yes", "-o", "json")
    assert code == 0
    ((path, _, body),) = server.patches
    assert (path, body["metadata"]["uid"]) == (f"{JOBS}/trainingjobs/llm", "uid-of-llm")
    assert body["metadata"]["annotations"]["understudy.dev/drill"].startswith("Pod 20")
    shown = json.loads(capsys.readouterr().out)
    assert (shown["fault"], shown["rows"][0]["strategy"]) == ("Pod", "SpareSwap")


def test_a_rejection_of_the_operator_ends_with_1(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    operator = Operator("the budget of restarts is spent")
    code, _ = drilled(monkeypatch, tmp_path, operator, "--fault", "process", "--yes")
    assert code == 1
    assert "nothing was broken: the budget of restarts is spent" in capsys.readouterr().err


def test_without_yes_and_without_a_terminal_nothing_is_requested(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, server = drilled(monkeypatch, tmp_path, Operator(), "--fault", "hang")
    assert (code, server.patches) == (2, [])
    assert "without --yes" in capsys.readouterr().err


def test_a_schedule_is_printed_and_breaks_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--fault", "node", "--schedule", "@weekly", "--image", "example.com/cli:1")
    code, server = drilled(monkeypatch, tmp_path, Operator(), *words)
    assert (code, server.patches) == (0, [])
    kinds = [found["kind"] for found in yaml.safe_load_all(capsys.readouterr().out)]
    assert kinds == ["ServiceAccount", "Role", "RoleBinding", "CronJob"]
