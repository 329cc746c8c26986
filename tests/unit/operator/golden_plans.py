"""Scenarios and their plans in YAML files: read, and written anew after a change that is meant.

A file has a head of comments, and for each scenario what is `given` and the `plan` that follows, a line an intent.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Raw = Mapping[str, Any]
Planned = Callable[[Raw], list[str]]


def read(folder: Path) -> dict[str, Raw]:
    """All scenarios, by file and name."""
    found = {}
    for path in sorted(folder.glob("*.yaml")):
        for name, scenario in yaml.safe_load(path.read_text(encoding="utf-8")).items():
            found[f"{path.stem}: {name}"] = scenario
    return found


def write(folder: Path, planned: Planned) -> None:
    """The plans as they are now."""
    for path in sorted(folder.glob("*.yaml")):
        text = path.read_text(encoding="utf-8")
        head = [line for line in text.splitlines() if line.startswith("#")]
        parts = [_written(name, told, planned) for name, told in yaml.safe_load(text).items()]
        path.write_text("\n".join([*head, "", *parts]), encoding="utf-8")


def _written(name: str, scenario: Raw, planned: Planned) -> str:
    given = yaml.safe_dump({"given": scenario.get("given", {})}, sort_keys=False, width=110, default_flow_style=None)
    plan = yaml.safe_dump({"plan": planned(scenario)}, sort_keys=False, width=10_000, default_flow_style=False)
    lines = "".join(f"  {line}\n" for line in (given + plan).splitlines())
    return f"{name}:\n{lines}"
