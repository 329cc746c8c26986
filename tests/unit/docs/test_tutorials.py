"""The manifests of the tutorials: the changed JobSet can be injected, and the fields of the TrainingJob exist."""

from __future__ import annotations

import copy
import re
from typing import Any

import yaml

from scripts.reference_fields import read_crd
from scripts.site_hooks import DOCS, ROOT
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.injection.owner import read_owner
from understudy_operator.plan.injection.targets import read_nproc, read_target, spec_of
from understudy_webhook.object_validation import example_pods, find_objections

Raw = dict[str, Any]


def manifests(tutorial: str) -> list[Raw]:
    page = (ROOT / DOCS / "tutorials" / f"{tutorial}.md").read_text(encoding="utf-8")
    return [yaml.safe_load(text) for text in re.findall(r"^```yaml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)]


def test_the_jobset_can_be_injected_with_a_spare_after_the_change() -> None:
    # given the JobSet of the tutorial, and the changed part of it
    jobset, changed = manifests("jobset")
    raw = copy.deepcopy(jobset)
    job = raw["spec"]["replicatedJobs"][0]["template"]["spec"]
    job |= {name: changed[name] for name in ("parallelism", "completions")}
    job["template"]["metadata"] = changed["template"]["metadata"]
    # then the webhook accepts it, and four pods of five train with a worker each
    assert find_objections("JobSet", raw) == []
    (example,) = example_pods("JobSet", raw)
    pod = inject(example, "image").pod
    spec = spec_of(read_target("JobSet", raw), read_owner(pod), pod)
    assert (spec["pods"], spec["members"], read_nproc(pod)) == (5, 4, 1)


def test_the_fields_of_the_trainingjob_exist() -> None:
    (job,) = [raw for raw in manifests("cluster") if raw["kind"] == "TrainingJob"]
    schema = read_crd("trainingjobs")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    assert list(unknown(job["spec"], schema["properties"]["spec"], "spec")) == []
    (container,) = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"]
    compile(container["command"][2], "count.yaml", "exec")


def unknown(value: Any, schema: Any, path: str) -> list[str]:
    """The fields of the value that the schema does not have."""
    if isinstance(value, list):
        return [name for entry in value for name in unknown(entry, schema["items"], f"{path}[]")]
    if not isinstance(value, dict) or "properties" not in schema:
        return []
    missing = [f"{path}.{name}" for name in value if name not in schema["properties"]]
    known = {name: inner for name, inner in value.items() if name in schema["properties"]}
    return missing + [
        deep for name, inner in known.items() for deep in unknown(inner, schema["properties"][name], f"{path}.{name}")
    ]
