"""Reads scenarios and their plans in YAML files, and rewrites them after an intended change.

A file has a head of comments, and for each scenario its `given` and the `plan` that follows, one intent a line. A
scenario with a key that its schema does not have is rejected: no plan would follow from this key.

A schema is a part of an OpenAPI schema, as the CRDs have it: `properties`, `items`, `additionalProperties` and `enum`.
A schema without any of them allows every value.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

Raw = Mapping[str, Any]
Planned = Callable[[Raw], list[str]]


CRDS = Path(__file__).parents[3] / "crds"


def keys(*names: str, **schemas: Raw) -> Raw:
    """The schema of a mapping with these keys. schemas: of some values, by key with `_` for a space."""
    return {"properties": {**{name: {} for name in names}, **{key.replace("_", " "): x for key, x in schemas.items()}}}


def by_name(schema: Raw) -> Raw:
    """The schema of a mapping from any names."""
    return {"additionalProperties": schema}


def crd_schema(plural: str) -> Raw:
    """The schemas of a kind's fields."""
    crd = yaml.safe_load((CRDS / f"{plural}.yaml").read_text(encoding="utf-8"))
    fields: Raw = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    return fields


def read(folder: Path, given: Raw) -> dict[str, Raw]:
    """All scenarios, by file and name. given: the schema. Raises ValueError for a key or word that it does not know."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        for name, scenario in _checked(path, yaml.safe_load(path.read_text(encoding="utf-8")), given).items():
            found[f"{path.stem}: {name}"] = scenario
    return found


def write(folder: Path, given: Raw, planned: Planned) -> None:
    """Write the current plans. Raises ValueError as `read` does."""
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        head = [line for line in text.splitlines() if line.startswith("#")]
        parts = [
            _written(name, result, planned) for name, result in _checked(path, yaml.safe_load(text), given).items()
        ]
        path.write_text("\n".join([*head, "", *parts]), encoding="utf-8")


def _checked(path: Path, scenarios: Mapping[str, Raw], given: Raw) -> Mapping[str, Raw]:
    for name, scenario in scenarios.items():
        for problem in _problems(scenario, keys("plan", given=given), f"{path.name}: {name}"):
            raise ValueError(problem)
    return scenarios


def _problems(value: object, schema: Raw, where: str) -> Iterator[str]:
    if isinstance(value, Mapping) and ("properties" in schema or "additionalProperties" in schema):
        known, others = schema.get("properties", {}), schema.get("additionalProperties")
        for key, part in value.items():
            if key in known or others is not None:
                yield from _problems(part, known.get(key, others), f"{where}: {key}")
            else:
                yield f"{where}: unknown key {key!r}, expected one of {', '.join(known)}"
    elif isinstance(value, list):
        for number, part in enumerate(value):
            yield from _problems(part, schema.get("items", {}), f"{where}: {number}")
    elif isinstance(value, str) and value not in schema.get("enum", (value,)):
        yield f"{where}: unknown word {value!r}, expected one of {', '.join(schema['enum'])}"


def _written(name: str, scenario: Raw, planned: Planned) -> str:
    given = yaml.safe_dump({"given": scenario.get("given", {})}, sort_keys=False, width=110, default_flow_style=None)
    plan = yaml.safe_dump({"plan": planned(scenario)}, sort_keys=False, width=10_000, default_flow_style=False)
    lines = "".join(f"  {line}\n" for line in (given + plan).splitlines())
    return f"{name}:\n{lines}"
