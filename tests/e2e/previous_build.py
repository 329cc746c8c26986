"""The newest commit with another protocol than this checkout, as files to build images and install a chart from.

Two commits have different protocols if the fields of a message, the members of an enum, or the version differ. A change
of a comment, or of the way messages are sent, gives no previous build: it would be the same protocol twice.
"""

import ast
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.cluster.paths import Paths
from tests.e2e.training import CHECKOUT

PROTOCOL = "sidecar/understudy_protocol"


def previous_build() -> Path:
    """Its folder, in the cache. Raises AssertionError in a clone without its history."""
    commit = previous_commit(CHECKOUT)
    folder = Paths.from_environment().cache / "builds" / commit[:12]
    if not folder.exists():
        unfinished = folder.with_suffix(".new")
        subprocess.run(["rm", "-rf", unfinished], check=True)
        unfinished.mkdir(parents=True)
        files = subprocess.run(["git", "-C", CHECKOUT, "archive", commit], check=True, capture_output=True).stdout
        subprocess.run(["tar", "-x", "-C", unfinished], input=files, check=True)
        unfinished.rename(folder)
    return folder


def previous_commit(checkout: Path) -> str:
    """The parent of the last commit that changed the protocol. Raises AssertionError if the history has none."""
    for changed in _git(checkout, "rev-list", "HEAD", "--", PROTOCOL).split():
        before, after = (messages(_sources(checkout, commit)) for commit in (f"{changed}^", changed))
        if before != after:
            return _git(checkout, "rev-parse", f"{changed}^")
    raise AssertionError(f"no commit of this clone changes the messages in {PROTOCOL}")


def messages(sources: Iterable[str]) -> frozenset[str]:
    """The fields of all messages, the members of all enums, and the protocol's version, as in the source."""
    return frozenset(line for source in sources for line in _definitions(ast.parse(source)))


def _definitions(module: ast.Module) -> Iterator[str]:
    for node in module.body:
        if isinstance(node, ast.ClassDef):
            fields = [ast.unparse(field) for field in node.body if isinstance(field, ast.AnnAssign | ast.Assign)]
            yield f"{node.name}: {'; '.join(fields)}"
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "VERSION":
            yield ast.unparse(node)


def _sources(checkout: Path, commit: str) -> list[str]:
    files = _git(checkout, "ls-tree", "--name-only", commit, "--", f"{PROTOCOL}/").split()
    return [_git(checkout, "show", f"{commit}:{file}") for file in files if file.endswith(".py")]


def _git(checkout: Path, *words: str) -> str:
    command = ["git", "-C", str(checkout), *words]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}; a clone with its history has the former build"
    return done.stdout.strip()
