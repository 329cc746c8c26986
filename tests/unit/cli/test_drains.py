"""`drain`: the pods that a user means, the refusals, the result, and the verb against a server."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.cli import samples
from tests.unit.cli.server import Answer, scripted
from tests.unit.cli.test_entry import JOBS, call, kubeconfig
from understudy_cli.command_errors import NotFound, NotPossible
from understudy_cli.facts import Job, Pod
from understudy_cli.reading import read_job, read_pod
from understudy_cli.views.drains import DrainPlan, DrainState, chosen_pods, drain_rows, plan_drain

PODS = "/api/v1/namespaces/team-a/pods"
#: Ready, unlike the spare of the samples.
SPARE = samples.pod("llm-spare-b", "node-e")


def job(**status: Any) -> Job:
    return read_job(samples.job(**status))


def pods(*more: dict[str, Any]) -> list[Pod]:
    return [read_pod(raw) for raw in (*samples.pods(), *more)]


def names(drain: DrainPlan) -> list[str]:
    return [pod.name for pod in drain.pods]


@pytest.mark.parametrize("target", ["llm-workers-0-1", "node-b"])
def test_a_target_is_a_pod_or_a_node(target: str) -> None:
    drain = plan_drain(job(), pods(SPARE), target)
    assert (names(drain), drain.spares, drain.remark) == (["llm-workers-0-1"], 1, "")


def test_a_node_stands_for_all_pods_of_the_job_there_and_its_spares_take_no_ranks() -> None:
    # given a node with two pods that train and a spare, and one spare on another node
    on_the_node = (samples.pod("llm-w-9", "node-b", rank=9), samples.pod("llm-spare-c", "node-b"))
    drain = plan_drain(job(), pods(SPARE, *on_the_node), "node-b")
    # then the two follow one after the other
    assert (names(drain), drain.spares) == (["llm-workers-0-1", "llm-w-9", "llm-spare-c"], 1)
    assert drain.remark == "1 spare is ready for 2 pods: the others follow when new spares are ready"


def test_without_a_ready_spare_nothing_is_requested() -> None:
    with pytest.raises(NotPossible) as raised:
        plan_drain(job(), pods(), "llm-workers-0-1")
    assert str(raised.value) == (
        "job llm has no ready spare that could take the ranks of pod llm-workers-0-1 (spares: 0 of 1 ready). "
        "Raise spec.spares.replicas, or wait until a spare is ready"
    )


def test_a_spare_can_be_drained_without_another_spare() -> None:
    assert names(plan_drain(job(), pods(SPARE), "llm-spare-b")) == ["llm-spare-b"]


def test_an_unknown_target_is_answered_with_the_pods_and_nodes_of_the_job() -> None:
    with pytest.raises(NotFound) as raised:
        plan_drain(job(), pods(), "llm-workers-0-7")
    assert "Its pods: llm-spare-new1, llm-spare-x7k2p, llm-workers-0-1. Their nodes: node-b, node-c, node-d" in str(
        raised.value
    )


@pytest.mark.parametrize(
    ("status", "message"),
    [
        ({"conditions": [samples.condition("Completed", "True", "x")]}, "job llm has ended"),
        ({"conditions": [samples.condition("Failed", "True", "x")]}, "job llm has ended"),
        ({"conditions": [samples.condition("Suspended", "True", "x")]}, "job llm is suspended"),
        ({"round": -1}, "job llm has not begun to train"),
    ],
)
def test_a_job_that_does_not_train_cannot_be_drained(status: dict[str, Any], message: str) -> None:
    with pytest.raises(NotPossible, match=message):
        plan_drain(job(**status), pods(SPARE), "llm-workers-0-1")


def test_a_pod_that_has_ended_cannot_be_drained() -> None:
    ended = samples.pod("llm-old", "node-x", rank=1, status={"phase": "Failed", "reason": "Evicted"})
    with pytest.raises(NotPossible, match="pod llm-old of job llm ends already: Evicted"):
        chosen_pods(job(), pods(ended), "llm-old")


def test_the_result_is_that_of_the_new_recovery_of_the_pod() -> None:
    drain = plan_drain(job(), pods(SPARE), "llm-workers-0-1")
    earlier = job(recoveries=[samples.recovery()]).recoveries
    known = {recovery.detected_at for recovery in earlier}
    # at first only an earlier fault of the pod is known
    assert [row.state for row in drain_rows(drain, pods(), earlier, known)] == [DrainState.WAITING]
    # then its swap has begun, and then it has ended
    begun = job(recoveries=[samples.drained() | {"resumedAt": None, "pauseSeconds": None}]).recoveries
    assert [row.state for row in drain_rows(drain, pods(), (*earlier, *begun), known)] == [DrainState.RECOVERING]
    (row,) = drain_rows(drain, pods(), job(recoveries=[samples.drained()]).recoveries, known)
    assert (row.state, row.strategy, row.pause, row.lost_steps) == (DrainState.DONE, "SpareSwap", "1.80 s", "0")


def test_a_drained_spare_is_done_when_it_is_gone() -> None:
    drain = plan_drain(job(), pods(SPARE), "llm-spare-b")
    assert [row.state for row in drain_rows(drain, pods(SPARE), (), ())] == [DrainState.WAITING]
    assert [row.state for row in drain_rows(drain, pods(), (), ())] == [DrainState.DONE]


# The verb -------------------------------------------------------------------------------------------------------------


def answers(**more: list[Answer]) -> dict[str, list[Answer]]:
    listed = Answer({"metadata": {"resourceVersion": "7"}, "items": [*samples.pods(), SPARE]})
    return {
        f"{JOBS}/trainingjobs/llm": [Answer(samples.job())],
        f"{JOBS}/recoveries": [Answer({}, 404)],
        PODS: [listed],
        f"{PODS}/llm-workers-0-1": [Answer({})],
    } | more


def test_the_request_is_an_annotation_of_the_pod(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with scripted(answers()) as server:
        config = kubeconfig(tmp_path, server.url)
        words = ("drain", "llm", "node-b", "--kubeconfig", config)
        assert call(monkeypatch, *words, "--reason", "a new kernel", "-o", "json") == 0
        assert call(monkeypatch, *words, "--cancel") == 0
    # the uid makes sure that no later pod of the name gets it
    kind, path = "application/merge-patch+json", f"{PODS}/llm-workers-0-1"
    assert server.patches == [
        (path, kind, {"metadata": {"uid": "uid-of-llm-workers-0-1", "annotations": {"understudy.dev/drain": value}}})
        for value in ("a new kernel", None)
    ]
    (row,) = json.loads(capsys.readouterr().out)["pods"]
    assert (row["pod"], row["ranks"], row["state"]) == ("llm-workers-0-1", "2-3", "requested")


def test_a_missing_right_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    refused = Answer({"message": "pods is forbidden"}, 403)
    with scripted(answers(**{f"{PODS}/llm-workers-0-1": [refused]})) as server:
        assert call(monkeypatch, "drain", "llm", "node-b", "--kubeconfig", kubeconfig(tmp_path, server.url)) == 4
    assert "pods is forbidden. Ask for the role edit" in capsys.readouterr().err


def follows(*jobs: dict[str, Any]) -> dict[str, list[Answer]]:
    """The answers while `--wait` follows the job: its states, one after the other."""
    first, *later = jobs
    pods_answer = Answer({"metadata": {"resourceVersion": "7"}, "items": [*samples.pods(), SPARE]})
    changes = tuple({"type": "MODIFIED", "object": changed} for changed in later)
    return answers(
        **{
            "/apis/understudy.dev/v1alpha1": [Answer({"resources": []})],
            f"{JOBS}/trainingjobs": [
                Answer({"metadata": {"resourceVersion": "7"}, "items": [first]}),
                Answer(lines=changes, stays=True),
            ],
            PODS: [pods_answer, pods_answer, Answer(stays=True)],
        }
    )


def test_wait_shows_the_cost_of_the_swap(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    swapped = samples.job(recoveries=[samples.recovery(), samples.swap(), samples.drained()])
    with scripted(follows(samples.job(), swapped)) as server:
        words = ("drain", "llm", "node-b", "--wait", "--kubeconfig", kubeconfig(tmp_path, server.url))
        assert call(monkeypatch, *words) == 0
    row = " ".join(capsys.readouterr().out.splitlines()[1].split())
    assert row == "llm-workers-0-1 2-3 node-b done SpareSwap 1.80 s 0"


def test_wait_ends_with_1_after_its_time_and_the_request_stays(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with scripted(follows(samples.job())) as server:
        words = ("drain", "llm", "node-b", "--wait", "--timeout", "0.5", "--kubeconfig")
        assert call(monkeypatch, *words, kubeconfig(tmp_path, server.url)) == 1
    said = capsys.readouterr().err
    assert "not done after 0.5 s: llm-workers-0-1 (0 of 1 spares are ready: pod llm-spare-new1 starts)" in said
    assert "understudy drain llm llm-workers-0-1 --cancel withdraws the request" in said


def test_wait_ends_with_1_if_the_job_ends_first(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ended = samples.job(conditions=[samples.condition("Completed", "True", "x")])
    with scripted(follows(samples.job(), ended)) as server:
        words = ("drain", "llm", "node-b", "--wait", "--kubeconfig", kubeconfig(tmp_path, server.url))
        assert call(monkeypatch, *words) == 1
    assert "job llm has ended before the drain was done" in capsys.readouterr().err


def test_cancel_with_wait_is_a_wrong_call(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(monkeypatch, "drain", "llm", "node-b", "--wait", "--cancel") == 2
    assert "--cancel with --wait" in capsys.readouterr().err
