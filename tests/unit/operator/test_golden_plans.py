"""A scenario file with an unknown key or word is rejected, with the file and the key."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.operator import golden_plans, pool_scenario_plans, scenario_plans
from tests.unit.operator.golden_plans import Raw


def write(folder: Path, given: str, remaining: str = "") -> None:
    (folder / "odd.yaml").write_text(f"# odd\na scenario:\n  given: {given}\n  plan: [rest]\n{remaining}")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{pod: {}}", "odd.yaml: a scenario: given: unknown key 'pod', expected one of"),
        ("{pods: {a0: {ranks: 0}}}", "given: pods: a0: unknown key 'ranks'"),
        ("{pods: {a0: {is: endet}}}", "given: pods: a0: is: unknown word 'endet', expected one of terminating, ended"),
        ("{job pods: {a0: {ranks: 0}}}", "given: job pods: a0: unknown key 'ranks'"),
        ("{reported: {rounds: 0}}", "given: reported: unknown key 'rounds'"),
        ("{reported: {rollouts: {fresch: 1}}}", "given: reported: rollouts: unknown key 'fresch'"),
        ("{reported: {closed: {why: SUCCEEDED}}}", "given: reported: closed: unknown key 'why'"),
        ("{facts: {claim: [a]}}", "given: facts: unknown key 'claim'"),
        (
            "{facts: {without: [Services]}}",
            "given: facts: without: 0: unknown word 'Services', expected one of Service",
        ),
        ("{nodes: {n1: {taint: []}}}", "given: nodes: n1: unknown key 'taint'"),
        ("{jobs: {llm-workers-0: readi}}", "given: jobs: llm-workers-0: unknown word 'readi'"),
        ("{jobs: {llm-workers-0: {is: ready, endet: 1}}}", "given: jobs: llm-workers-0: unknown key 'endet'"),
        ("{groups: {workers: {replica: 2}}}", "given: groups: workers: unknown key 'replica'"),
        ("{groups: {workers: {job: {paralelism: 2}}}}", "given: groups: workers: job: unknown key 'paralelism'"),
        ("{spec: {spares: {replica: 1}}}", "given: spec: spares: unknown key 'replica'"),
        ("{status: {restart: 1}}", "given: status: unknown key 'restart'"),
        ("{metadata: {generations: 1}}", "given: metadata: unknown key 'generations'"),
    ],
)
def test_a_scenario_with_an_unknown_key_or_word_is_refused(tmp_path: Path, given: str, problem: str) -> None:
    write(tmp_path, given)
    with pytest.raises(ValueError, match="a scenario: ") as refused:
        golden_plans.read(tmp_path, scenario_plans.SCHEMA)
    assert str(refused.value).startswith("odd.yaml: a scenario: given: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ("{spare: {}}", "given: unknown key 'spare'"),
        ("{spares: {p1: {claimedby: a}}}", "given: spares: p1: unknown key 'claimedby'"),
        ("{spares: {p1: readi}}", "given: spares: p1: unknown word 'readi'"),
        ("{spares: {p1: {is: readi}}}", "given: spares: p1: is: unknown word 'readi'"),
        ("{spares: {p1: {template: odd}}}", "given: spares: p1: template: unknown word 'odd', expected one of old"),
        ("{spec: {replica: 1}}", "given: spec: unknown key 'replica'"),
    ],
)
def test_a_scenario_of_a_pool_with_an_unknown_key_or_word_is_refused(tmp_path: Path, given: str, problem: str) -> None:
    write(tmp_path, given)
    with pytest.raises(ValueError, match="a scenario: ") as refused:
        golden_plans.read(tmp_path, pool_scenario_plans.SCHEMA)
    assert str(refused.value).startswith("odd.yaml: a scenario: given: ")
    assert problem in str(refused.value)


@pytest.mark.parametrize(
    "do", [golden_plans.read, lambda folder, given: golden_plans.write(folder, given, lambda _: [])]
)
def test_a_scenario_has_only_given_and_plan(tmp_path: Path, do: Callable[[Path, Raw], object]) -> None:
    write(tmp_path, "{}", "  plans: []\n")
    before = (tmp_path / "odd.yaml").read_text()
    with pytest.raises(ValueError, match=r"odd\.yaml: a scenario: unknown key 'plans', expected one of plan, given"):
        do(tmp_path, scenario_plans.SCHEMA)
    assert (tmp_path / "odd.yaml").read_text() == before


def test_known_words_are_accepted(tmp_path: Path) -> None:
    write(tmp_path, "{pods: {a0: {rank: 0}, a1: }, jobs: {llm-workers-0: ready}, spec: {spares: {replicas: 1}}}")
    assert golden_plans.read(tmp_path, scenario_plans.SCHEMA).keys() == {"odd: a scenario"}
