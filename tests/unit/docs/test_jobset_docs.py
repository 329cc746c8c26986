"""docs/reference/jobset.md has each field that a JobSet has too, and no field that does not exist."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
#: Fields that a JobSet does not have.
UNDERSTUDY_FIELDS = (
    "launcher",
    "spares",
    "recovery",
    "termination",
    "faults",
    "drills",
    "elastic",
    "rollouts",
    "snapshots",
    "checkpoint",
)
#: Kubernetes' own fields, which its own documentation describes.
FOREIGN = ("replicatedJobs[].template.spec", "replicatedJobs[].template.metadata", "volumeClaimPolicies[].templates")


def fields(schema: dict[str, Any], path: str = "") -> Iterator[str]:
    for name, child in schema.get("properties", {}).items():
        here = f"{path}.{name}".lstrip(".")
        if name in UNDERSTUDY_FIELDS and not path:
            continue
        yield here
        if here not in FOREIGN:
            yield from fields(child, here)
            yield from fields(child.get("items", {}), f"{here}[]")


def test_the_table_has_a_row_for_each_field_of_jobset_and_no_other():
    crd = yaml.safe_load((ROOT / "crds/trainingjobs.yaml").read_text(encoding="utf-8"))
    spec = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    section = (ROOT / "docs/reference/jobset.md").read_text(encoding="utf-8").split("## Pods")[0]
    rows = re.findall(r"^\| `(.+?)` \| (\w+) \|", section, re.MULTILINE)
    assert sorted(field for field, _ in rows) == sorted(fields(spec))
    assert {verdict for _, verdict in rows} <= {"same", "better", "different"}
