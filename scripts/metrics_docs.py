"""Write the generated parts of docs/reference/metrics.md from the code and the alerts; --check only names stale ones.

The tables come from the metrics of a new process, so they contain exactly the existing metrics.
"""

import argparse
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from scripts.message_tables import markdown
from scripts.protocol_docs import PageError, fill
from understudy_operator.metrics.operator_metrics import OperatorMetrics
from understudy_sidecar import metrics as coordinator
from understudy_webhook.metrics import WebhookMetrics

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/reference/metrics.md"
ALERTS = ROOT / "charts/understudy/files/alerts"
COMMAND = "scripts/py scripts/metrics_docs.py"


class Described(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def text(self) -> str: ...
    @property
    def labels(self) -> tuple[str, ...]: ...


class Nobody:
    """An operator without any state, which is enough to describe its metrics."""

    def __getattr__(self, name: str) -> Any:
        return lambda: 0


def main(arguments: list[str], page: Path = PAGE) -> int:
    parser = argparse.ArgumentParser(description="Write the generated parts of docs/reference/metrics.md.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a part is stale")
    options = parser.parse_args(arguments)
    try:
        filled, stale = fill(page.read_text(encoding="utf-8"), generated())
    except PageError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    if not options.check:
        page.write_text(filled, encoding="utf-8")
        return 0
    for name in stale:
        sys.stderr.write(f"{page.name}: the part {name!r} differs from the code: run `{COMMAND}` and commit it\n")
    return 1 if stale else 0


def generated() -> dict[str, str]:
    """Every generated part of the page, by its name."""
    return {
        **{name: metrics_table(described) for name, described in programs().items()},
        "alerts": alerts_table(rule for _, rule in alerts()),
        "runbook": "\n\n".join(runbook(rule) for _, rule in alerts()),
    }


def programs() -> dict[str, Iterable[Described]]:
    """The metrics of each program."""
    operator = OperatorMetrics()
    operator.read(Nobody())
    return {
        "operator": operator.book.described,
        "webhook": WebhookMetrics().book.described,
        "coordinator": coordinator.DESCRIBED,
    }


def alerts() -> Iterator[tuple[Path, Mapping[str, Any]]]:
    """Each alert, with its file."""
    for path in sorted(ALERTS.glob("*.yaml")):
        for group in yaml.safe_load(path.read_text(encoding="utf-8"))["groups"]:
            for rule in group["rules"]:
                yield path, rule


def metrics_table(described: Iterable[Described]) -> str:
    rows = [(f"`{x.name}`", x.kind, ", ".join(f"`{label}`" for label in x.labels), x.text) for x in described]
    return markdown(("metric", "kind", "labels", "meaning"), rows)


def alerts_table(rules: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        (f"[`{rule['alert']}`](#{rule['alert'].lower()})", rule["labels"]["severity"], rule.get("for", "at once"))
        for rule in rules
    ]
    return markdown(("alert", "severity", "after"), rows)


def runbook(rule: Mapping[str, Any]) -> str:
    annotations = rule["annotations"]
    return f"### {rule['alert']}\n\n`{rule['expr']}`\n\n{annotations['description']} **To do:** {annotations['action']}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
