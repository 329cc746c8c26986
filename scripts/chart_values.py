"""Generate two files from charts/understudy/values.yaml: values.schema.json and docs/reference/values.md.

--check only names stale files. Rules for values.yaml:
- The comment above a value is its description. Indented lines in it are an example, and are not copied.
- A value has the type of its default. A line `# @schema {…}` adds JSON Schema to it, and must describe the content of
  an object or a list that is empty. `pod: FIELD` and `container: FIELD` take the schema of a Kubernetes field from our
  CRD. `selector: true` is a label selector, `peers: true` a list of peers of a NetworkPolicy.
- An object without such a line is a section, which may contain only the listed values.
So helm rejects a misspelled value or a wrong type, with its path, before it applies anything.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.message_tables import markdown
from scripts.protocol_docs import PageError, fill

ROOT = Path(__file__).resolve().parent.parent
CHART = ROOT / "charts/understudy"
PAGE = ROOT / "docs/reference/values.md"
CRD = ROOT / "crds/trainingjobs.yaml"
COMMAND = "make chart"
MARK = "@schema "
#: Former path -> its path now. helm rejects the former one, and its message contains the new one.
RENAMED = {
    "admissionPolicies.authors": "admissionPolicies.authors.enabled",
    "crds.install": "crds.enabled",
    "faults.sources[].except": "faults.sources[].exceptValues",
    "networkPolicies.alsoFrom": "networkPolicies.extraFrom",
    "networkPolicies.alsoTo": "networkPolicies.extraTo",
    "networkPolicies.egress": "networkPolicies.egress.enabled",
    "networkPolicies.jobs": "networkPolicies.jobs.enabled",
    "rbac.aggregate": "rbac.aggregate.enabled",
}
TYPES = {
    type(None): "null",
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}

Schema = dict[str, Any]


class ValuesError(Exception):
    """A value without a description or a type. The message names its line and the fix."""


@dataclass(frozen=True)
class Value:
    path: tuple[str, ...]
    default: Any
    line: int
    description: str
    schema: Schema | None  # from @schema
    inside: tuple["Value", ...] = ()  # of a section

    @property
    def name(self) -> str:
        return ".".join(self.path)


def main(arguments: list[str], chart: Path = CHART, page: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(description="Write values.schema.json and the tables of docs/reference/values.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if one of them is stale")
    options = parser.parse_args(arguments)
    try:
        values = read_values((chart / "values.yaml").read_text(encoding="utf-8"))
        filled, stale = fill(page.read_text(encoding="utf-8"), {"values": tables(values)})
        schema = json.dumps(schema_of(values, pod_spec()), indent=1, sort_keys=True) + "\n"
    except (ValuesError, PageError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    file = chart / "values.schema.json"
    if not options.check:
        file.write_text(schema, encoding="utf-8")
        page.write_text(filled, encoding="utf-8")
        return 0
    if not file.exists() or file.read_text(encoding="utf-8") != schema:
        stale.append(file.name)
    for name in stale:
        sys.stderr.write(f"{name} differs from values.yaml: run `{COMMAND}` and commit it\n")
    return 1 if stale else 0


def read_values(text: str) -> tuple[Value, ...]:
    """Raises ValuesError."""
    root = yaml.compose(text, yaml.SafeLoader)
    if not isinstance(root, yaml.MappingNode):
        raise ValuesError("values.yaml: expected an object")
    return tuple(_read(root, text.splitlines(), ()))


def _read(node: yaml.MappingNode, lines: list[str], above: tuple[str, ...]) -> Iterator[Value]:
    for key, value in node.value:
        path, line = (*above, key.value), key.start_mark.line
        description, output = _comment(lines, line)
        where = f"values.yaml, line {line + 1}: {'.'.join(path)}"
        if not description:
            raise ValuesError(f"{where} has no comment: describe it above")
        default = yaml.safe_load(yaml.serialize(value))
        section = isinstance(value, yaml.MappingNode) and output is None
        if output is None and default in ({}, [], None):
            fix = f"`# {MARK}{{additionalProperties: {{type: string}}}}`"
            raise ValuesError(f"{where} is empty: describe its content above it, as in {fix}")
        inside = tuple(_read(value, lines, path)) if section else ()
        yield Value(path, default, line + 1, description, output, inside)


def _comment(lines: list[str], line: int) -> tuple[str, Schema | None]:
    """The description and the schema of the value in that line (counted from 0)."""
    block: list[str] = []
    while line > 0 and lines[line - 1].lstrip().startswith("#"):
        line -= 1
        block.insert(0, lines[line].lstrip()[1:])
    output: Schema | None = None
    words = []
    for text in block:
        if text.strip().startswith(MARK):
            output = (output or {}) | yaml.safe_load(text.strip().removeprefix(MARK))
        elif not text.startswith("  "):
            words.append(text.strip())
    return " ".join(words).strip(), output


# The schema ----------------------------------------------------------------------------------------------------------


def schema_of(values: tuple[Value, ...], pod: Schema, renamed: Mapping[str, str] = RENAMED) -> Schema:
    """The schema of all values. Helm sets `global` if another chart contains this one."""
    root = _object({value.path[-1]: _schema(value, pod) for value in values})
    root["properties"]["global"] = {"type": "object"}
    for previous, new in renamed.items():
        _reject_renamed(root, previous, new)
    return {"$schema": "http://json-schema.org/draft-07/schema#", "title": "Values of the chart understudy", **root}


def _reject_renamed(root: Schema, previous: str, new: str) -> None:
    """Reject the former path with a message that contains the new one: `value must be 'now named …'`."""
    *above, name = previous.split(".")
    section = root
    for part in above:
        section = section["properties"][part.removesuffix("[]")]
        section = section["items"] if part.endswith("[]") else section
    rejection: Schema = {"const": f"now named {new}"}
    if (renamed := section["properties"].get(name)) is not None:  # a switch that became a section
        rejection = {"if": {"type": "boolean"}, "then": rejection, "else": renamed}
    section["properties"][name] = rejection


def _schema(value: Value, pod: Schema) -> Schema:
    values = {"description": value.description}
    if value.inside:
        return _object({inner.path[-1]: _schema(inner, pod) for inner in value.inside}) | values
    lines = dict(value.schema or {})
    for source, fields in (("pod", pod), ("container", pod["containers"]["items"]["properties"])):
        if source in lines:
            return _kubernetes(fields[lines[source]]) | values
    if lines.pop("selector", False):
        return _kubernetes(_selector(pod)) | values
    if lines.pop("peers", False):
        return _peers(pod) | values
    schema = {"type": TYPES[type(value.default)]} | lines | values
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    return schema


def _object(properties: Mapping[str, Schema]) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": dict(properties)}


def pod_spec() -> Schema:
    """The schemas of a pod's spec, which our CRD has from Kubernetes."""
    crd = yaml.load(CRD.read_text(encoding="utf-8"), yaml.CSafeLoader)
    schema = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for name in ("spec", "replicatedJobs"):
        schema = schema["properties"][name]
    schema = schema["items"]
    for name in ("template", "spec", "template", "spec"):
        schema = schema["properties"][name]
    fields: Schema = schema["properties"]
    return fields


def _selector(pod: Schema) -> Schema:
    selector: Schema = pod["topologySpreadConstraints"]["items"]["properties"]["labelSelector"]
    return selector


def _peers(pod: Schema) -> Schema:
    """The schema of a NetworkPolicy's peers. It rejects an empty peer."""
    selector = _kubernetes(_selector(pod))
    cidrs = {"type": "array", "items": {"type": "string"}}
    block = {**_object({"cidr": {"type": "string"}, "except": cidrs}), "required": ["cidr"]}
    peer = _object({"podSelector": selector, "namespaceSelector": selector, "ipBlock": block})
    return {"type": "array", "items": {**peer, "minProperties": 1}}


def _kubernetes(schema: Schema) -> Schema:
    strict: Schema = _strict(schema)
    return strict


def _strict(schema: Any) -> Any:
    """As plain JSON Schema, which rejects unknown fields. A quantity may be a number."""
    if isinstance(schema, list):
        return [_strict(entry) for entry in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["number", "string"]} | {name: schema[name] for name in ("pattern",) if name in schema}
    made: Schema = {}
    for name, part in schema.items():
        if name == "properties":
            made[name] = {field: _strict(inner) for field, inner in part.items()}
        elif name not in ("default", "format", "description") and not name.startswith("x-kubernetes-"):
            made[name] = _strict(part)
    if "properties" in made:
        made["additionalProperties"] = False
    return made


# The page ------------------------------------------------------------------------------------------------------------


def tables(values: tuple[Value, ...]) -> str:
    """One table for each section, in their order. A value outside of sections has its own table."""
    parts = []
    for value in values:
        heading = f"### `{value.name}`"
        if value.inside:
            parts.append(f"{heading}\n\n{value.description}\n\n{_table(_leaves(value))}")
        else:
            parts.append(f"{heading}\n\n{_table([value])}")
    return "\n\n".join(parts)


def _leaves(value: Value) -> list[Value]:
    return [leaf for inner in value.inside for leaf in _leaves(inner)] if value.inside else [value]


def _table(leaves: list[Value]) -> str:
    rows = [(f"`{leaf.name}`", f"`{_shown(leaf.default)}`", _describe_value(leaf)) for leaf in leaves]
    return markdown(("value", "default", "meaning"), rows)


def _describe_value(value: Value) -> str:
    words = (value.schema or {}).get("enum", ())
    choice = f" {', '.join(f'`{word}`' for word in words[:-1])} or `{words[-1]}`." if words else ""
    return value.description + choice


def _shown(default: Any) -> str:
    """On one line, as in a manifest."""
    if default == "":
        return '""'
    return yaml.safe_dump(default, default_flow_style=True, width=10_000, sort_keys=False).strip().removesuffix("\n...")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
