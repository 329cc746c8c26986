"""docs/how-to/inject.md, followed by a new user: its manifests can be injected, and all answers are on the page."""

import copy
from typing import Any

import pytest
import yaml

from tests.unit.docs.inject_page import blocks, refused, replaced
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.injection.owner import read_owner
from understudy_operator.plan.injection.targets import read_nproc, read_target, spec_of
from understudy_webhook.object_validation import example_pods, find_objections

Raw = dict[str, Any]
MANIFESTS = [raw for raw in map(yaml.safe_load, blocks("yaml")) if "kind" in raw]
#: The numbers that the page has for each manifest: pods, pods that train, and workers in each of these.
SIZES = {"Job": (5, 4, 8), "JobSet": (4, 4, 1)}


def of_kind(kind: str) -> Raw:
    return copy.deepcopy(next(raw for raw in MANIFESTS if raw["kind"] == kind))


def test_the_page_has_a_manifest_of_each_kind_that_it_shows() -> None:
    assert [raw["kind"] for raw in MANIFESTS] == list(SIZES)


@pytest.mark.parametrize("kind", SIZES)
def test_a_manifest_is_accepted_and_trains_with_the_sizes_that_the_page_names(kind: str) -> None:
    raw = of_kind(kind)
    assert find_objections(kind, raw) == []
    (example,) = example_pods(kind, raw)
    pod = inject(example, "image").pod
    spec = spec_of(read_target(kind, raw), read_owner(pod), pod)
    assert (spec["pods"], spec["members"], read_nproc(pod)) == SIZES[kind]


@pytest.mark.parametrize(("change", "answer"), refused())
def test_requests_that_the_page_rejects_are_answered_with_its_messages(change: str, answer: str) -> None:
    assert find_objections("Job", replaced(of_kind("Job"), change)) == [
        f"understudy cannot inject the pods of this Job: {answer}"
    ]


def test_annotations_without_a_launcher_leave_the_command_to_the_script() -> None:
    (result,) = (raw["annotations"] for raw in map(yaml.safe_load, blocks("yaml")) if "annotations" in raw)
    raw = of_kind("Job")
    raw["spec"]["template"]["metadata"]["annotations"] = result
    assert find_objections("Job", raw) == []
    (example,) = example_pods("Job", raw)
    assert read_nproc(inject(example, "image").pod) == 0


def test_the_script_of_the_page_imports_existing_names() -> None:
    (script,) = blocks("python")
    compile(script, "inject.md", "exec")
    assert "from understudy_torch import exit_on_fault" in script
