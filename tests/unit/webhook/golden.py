"""The golden pods: as a controller creates them (pods/NAME.yaml), and after injection (pods/NAME.injected.yaml).

`python -m tests.unit.webhook.golden` rewrites the latter; read the diff.
"""

from pathlib import Path
from typing import Any

import yaml

from understudy_operator.plan.injection.injected_pods import inject

FOLDER = Path(__file__).with_name("pods")
IMAGE = "example.com/sidecar:1"
NAMES = ("job", "jobset", "pytorchjob", "torchrun", "alone")


def pod(name: str) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    return found


def golden(name: str) -> str:
    return (FOLDER / f"{name}.injected.yaml").read_text()


def text(made: dict[str, Any]) -> str:
    return yaml.safe_dump(made, sort_keys=True, width=120)


def main() -> None:
    for name in NAMES:
        (FOLDER / f"{name}.injected.yaml").write_text(text(inject(pod(name), IMAGE).pod))


if __name__ == "__main__":
    main()
