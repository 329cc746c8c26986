"""A test states the numbers that it expects: it does not import them from the code under test.

With an imported number a test passes for any value of it. The same holds for `module.NUMBER`.
"""

import ast
import importlib
import re
from collections.abc import Mapping

import pytest

from tests.unit.suite.sources import trees

CONSTANT = re.compile(r"_?[A-Z][A-Z0-9_]*")
UNDER_TEST = re.compile(r"(understudy_\w+|benchmarks|release|scripts)\b")

#: The files and the numbers that they may import, with the reason.
EXCEPTIONS = {
    # simulated edges of the real code: they have its limits, and the invariants state the expected numbers
    "simulation/clients.py": {"ANSWER_S", "TCP_S"},
    "simulation/launchers.py": {"LEFTOVERS"},
    "simulation/sidecars.py": {"EVICTED_EXIT_CODE"},
    "simulation_operator/client.py": {"REQUEST_S"},
    # a copy of the real method with one rule broken
    "simulation/mutations.py": {"MAX_RECOVERIES"},
    # the port of a controller that the benchmark's code configures; the test starts it with that configuration
    "e2e/injected.py": {"HEALTH_PORT"},
    # the fixture replaces the ports by free ones
    "unit/sidecar/test_pool_spare.py": {"COORDINATOR_PORT", "HEALTH_PORT"},
    # two packages that may not import each other state the same number, and the test compares them
    "unit/torch/test_progress.py": {"MAGIC", "PAGE_BYTES"},
    # the table of codes is the subject: the test compares it with NVIDIA's catalog, the documentation or a row
    "unit/operator/plan/verdicts/test_xids.py": {"FATAL"},
    "unit/operator/plan/verdicts/test_table.py": {"FATAL"},
    "unit/docs/test_faults_docs.py": {"FATAL"},
}


def imported_numbers(tree: ast.AST) -> set[str]:
    """The names of the numeric constants that a file takes from the code under test."""
    modules: dict[str, str] = {}
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {name.asname or name.name: name.name for name in node.names}
        elif isinstance(node, ast.ImportFrom) and UNDER_TEST.match(node.module or ""):
            modules |= {name.asname or name.name: f"{node.module}.{name.name}" for name in node.names}
            found |= {name.name for name in node.names if _is_number(str(node.module), name.name)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            module = _module_of(ast.unparse(node.value), modules)
            if UNDER_TEST.match(module) and _is_number(module, node.attr):
                found.add(node.attr)
    return found


def _module_of(written: str, modules: Mapping[str, str]) -> str:
    """The module to which an expression refers, according to the file's imports; "" if it is none."""
    for known in sorted(modules, key=len, reverse=True):
        if written == known or written.startswith(f"{known}."):
            return modules[known] + written.removeprefix(known)
    return ""


def _is_number(module: str, name: str) -> bool:
    if not CONSTANT.fullmatch(name):
        return False
    try:
        value = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError):  # a name in a class, or of a module that does not exist
        return False
    values = value if isinstance(value, list | tuple | set | frozenset | range) else (value,)
    return bool(values) and all(type(each) in (int, float) for each in values)


@pytest.mark.parametrize(
    ("source", "numbers"),
    [
        ("from understudy_sidecar.membership.silence import HEARTBEATS, Patience", {"HEARTBEATS"}),
        ("from understudy_sidecar.membership import silence as s\nassert s.HEARTBEATS == 3", {"HEARTBEATS"}),
        ("import understudy_sidecar.client\nunderstudy_sidecar.client.TCP_S", {"TCP_S"}),
        ("from understudy_sidecar import membership\nmembership.silence.HEARTBEATS", {"HEARTBEATS"}),
        ("from understudy_operator.metrics.operator_metrics import RECOVERY_S", {"RECOVERY_S"}),
        ("from understudy_protocol.enums import NO_ROUND", set()),
        ("from tests.unit.operator.given import NOW", set()),
        ("HEARTBEATS = 3", set()),
    ],
)
def test_how_a_file_imports_a_number(source: str, numbers: set[str]) -> None:
    assert imported_numbers(ast.parse(source)) == numbers


def test_only_the_exceptions_import_numbers_from_the_code_under_test() -> None:
    found = {path: numbers for path, tree in trees(".", containing="import") if (numbers := imported_numbers(tree))}
    assert found == EXCEPTIONS, "state the number in the test, or add an exception with its reason"
