"""The code blocks of docs/how-to/inject.md and its table of error messages, and a shell in which to follow the page."""

import copy
import os
import re
import subprocess
import textwrap
from pathlib import Path
from typing import Any

import yaml

PAGE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "inject.md"
Raw = dict[str, Any]


def blocks(language: str) -> list[str]:
    """All code blocks of a language, in the page's order."""
    fence = re.compile(rf"^( *)```{language}\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
    return [textwrap.dedent(found[2]) for found in fence.finditer(PAGE.read_text(encoding="utf-8"))]


def refused() -> list[tuple[str, str]]:
    """The line of YAML in each row, and the answer to the page's Job with that line."""
    section = PAGE.read_text(encoding="utf-8").split("## Error messages")[1].split("\n## ")[0]
    rows = [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]
    return [(change.strip("`"), answer.strip("`")) for change, answer in rows]


def replaced(job: Raw, change: str) -> Raw:
    """The Job with that line at its place."""
    ((key, value),) = yaml.safe_load(change).items()
    raw = copy.deepcopy(job)
    template = raw["spec"]["template"]
    if key == "understudy.dev/inject":
        template["metadata"]["labels"][key] = value
    elif "/" in key:
        template["metadata"]["annotations"][key] = value
    elif key == "command":
        template["spec"]["containers"][0][key] = value
    else:
        raw["spec"][key] = value
    return raw


class Shell:
    """The shell of a new user with kubectl: train.yaml, in its folder, is the page's first manifest."""

    def __init__(self, kubectl: Path, kubeconfig: Path, folder: Path) -> None:
        self._folder = folder
        self.write(yaml.safe_load(blocks("yaml")[0]))
        path = f"{kubectl.parent}:{os.environ['PATH']}"
        self._environment = {"PATH": path, "HOME": str(folder), "KUBECONFIG": str(kubeconfig)}

    def write(self, manifest: Raw) -> None:
        """Save it as train.yaml."""
        (self._folder / "train.yaml").write_text(yaml.safe_dump(manifest))

    def run(self, line: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            ["bash", "-c", line],
            cwd=self._folder,
            env=self._environment,
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
        )

    def must(self, line: str) -> str:
        done = self.run(line)
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout


def lines(block: str) -> list[str]:
    return [line for line in block.splitlines() if line]
