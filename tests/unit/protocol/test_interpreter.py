"""What ships into users' images runs under whatever Python they have, from 3.9 on, and with nothing installed."""

import ast
import sys
from pathlib import Path

import pytest

import understudy_launcher
import understudy_protocol

PACKAGES = (understudy_protocol, understudy_launcher)
MODULES = [path for package in PACKAGES for path in sorted(Path(package.__path__[0]).glob("*.py"))]
OWN = {package.__name__ for package in PACKAGES}


def imported(path: Path) -> set[str]:
    """The top-level names of what a module imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            found.add((node.module or "").partition(".")[0])
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_it_parses_as_python_3_9_and_imports_the_standard_library_only(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
    assert imported(path) <= sys.stdlib_module_names | OWN


def test_the_protocol_knows_none_of_the_programs() -> None:
    for path in MODULES:
        if path.parent.name == "understudy_protocol":
            assert imported(path) <= sys.stdlib_module_names | {"understudy_protocol"}
