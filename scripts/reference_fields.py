"""The fields of the API, from the CRDs: one table for each field of spec, and one for status. A kind without a spec has
one table.

A field of Kubernetes itself (a pod template, a claim template, a condition) is one row without its own fields. A field
that the API rejects because it was renamed is not listed.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from scripts.message_tables import markdown

CRDS = Path(__file__).resolve().parent.parent / "crds"
#: The names of fields whose own fields are those of Kubernetes.
OF_KUBERNETES = ("template", "templates", "conditions", "metadata", "labelSelector")
#: Fields that objects of every kind have.
OF_EVERY_KIND = ("apiVersion", "kind", "metadata")
REJECTED = "Rejected: "

Schema = Mapping[str, Any]


class FieldError(Exception):
    """A field without a description. The message names it."""


@dataclass(frozen=True)
class Field:
    path: str  # below spec or status, if the kind has these
    kind: str
    text: str


@cache
def read_crd(name: str) -> Schema:
    """A file of crds/. libyaml reads the 200 KB of one in 0.1 s, the parser in Python in 3 s."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    read: Schema = loader((CRDS / f"{name}.yaml").read_text(encoding="utf-8")).get_single_data()
    return read


def fields_of(crd: str) -> str:
    """The page's part for one kind: columns of `kubectl get`, then the tables. crd: the name of its file."""
    spec = read_crd(crd)["spec"]
    kind, version = spec["names"]["kind"], spec["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    if "spec" in schema:
        tables = {
            f"`spec.{name}`": _table([_field(name, field), *_fields_inside(name, field)])
            for name, field in schema["spec"]["properties"].items()
            if _is_shown(field)
        }
        tables["`status`"] = _table(list(_fields("", schema["status"]["properties"])))
    else:
        own = {name: field for name, field in schema.items() if name not in OF_EVERY_KIND}
        tables = {"fields": _table(list(_fields("", own)))}
    tables["columns of `kubectl get`"] = _columns(version["additionalPrinterColumns"])
    return "\n\n".join(f"### {kind}: {heading}\n\n{table}" for heading, table in tables.items())


def _fields(prefix: str, properties: Mapping[str, Schema]) -> Iterator[Field]:
    for name, schema in properties.items():
        if _is_shown(schema):
            path = f"{prefix}{name}"
            yield _field(path, schema)
            yield from _fields_inside(path, schema)


def _fields_inside(path: str, schema: Schema) -> Iterator[Field]:
    if path.split(".")[-1].removesuffix("[]") in OF_KUBERNETES:
        return
    while schema.get("type") == "array":
        path, schema = f"{path}[]", schema["items"]
    yield from _fields(f"{path}.", schema.get("properties", {}))


def _field(path: str, schema: Schema) -> Field:
    text = " ".join(schema.get("description", "").split())
    if not text:
        raise FieldError(f"{path} has no description: add a comment in crds/generator/v1alpha1, and run `make crds`")
    values = schema.get("enum")
    choice = f" One of {', '.join(f'`{value}`' for value in values)}." if values else ""
    return Field(path, _kind(schema), text.replace("<", "&lt;") + choice)


def _kind(schema: Schema) -> str:
    if schema.get("type") == "array":
        return f"[{_kind(schema['items'])}]"
    if schema.get("format") == "date-time":
        return "time"
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    more = schema.get("additionalProperties")
    return f"{{string: {_kind(more)}}}" if isinstance(more, dict) else str(schema.get("type", "object"))


def _is_shown(schema: Schema) -> bool:
    return not str(schema.get("description", "")).startswith(REJECTED)


def _table(fields: list[Field]) -> str:
    rows = [(f"`{field.path}`", field.kind, field.text) for field in fields]
    return markdown(("field", "type", "meaning"), rows)


def _columns(columns: list[Schema]) -> str:
    rows = [
        (
            column["name"].upper(),
            f"`{column['jsonPath']}`",
            "`-o wide`" if column.get("priority") else "",
            column.get("description", ""),
        )
        for column in columns
    ]
    return markdown(("column", "field", "shown with", "meaning"), rows)
