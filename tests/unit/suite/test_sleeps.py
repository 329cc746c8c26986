"""No unit or integration test sleeps for a fixed time of the real clock and then asserts that nothing happened.

On a slow machine such a test passes whatever the code does. Use virtual time (tests/unit/virtual_time.py), or wait for
an event that comes after the one that must not come. A loop that ends when a condition holds is a wait, not a sleep.
"""

import ast
from collections.abc import Iterator

import pytest

from tests.unit.suite.sources import trees

SLEEPS = ("asyncio.sleep", "time.sleep", "sleep")
VIRTUAL = ("in_virtual_time",)
Function = ast.FunctionDef | ast.AsyncFunctionDef

#: Functions that may sleep, with the reason.
EXCEPTIONS = {
    # only tests in virtual time call them
    "unit/operator/test_arbitrary_objects.py::_start",
    "unit/operator/test_arbitrary_objects.py::_shown",
    "unit/operator/test_copies.py::wait_until_idle",
    "unit/operator/test_one_job_that_raises.py::events_on",
    # the sleep is the subject: a process that is frozen for so long
    "unit/sidecar/test_strangers.py::test_a_freeze_of_this_sidecar_evicts_no_caller",
    "unit/sidecar/test_caller_links.py::send_encoded",
    "unit/webhook/test_cpu_limit.py::test_waiting_does_not_count_as_calculation",
    # a peer that does not read until its test ends, and a slow one
    "unit/sidecar/test_floods.py::never_reading",
    "unit/sidecar/test_answers.py::prepared",
    # cleanup, after the assertions of the test
    "unit/sidecar/calling.py::dialing",
}


def fixed_sleeps(tree: ast.AST) -> set[str]:
    """The functions that sleep for a fixed time of the real clock and then assert, or return to their caller."""
    return {function.name for function in _real_functions(tree) if _sleeps_before_an_assertion(function)}


def _real_functions(node: ast.AST) -> Iterator[Function]:
    """Functions that do not run in virtual time. A function in one that runs in virtual time does too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, Function):
            if any(name in ast.unparse(decorator) for decorator in child.decorator_list for name in VIRTUAL):
                continue
            yield child
        yield from _real_functions(child)


def _sleeps_before_an_assertion(function: Function) -> bool:
    sleeps = [node for node in _own(function) if _is_sleep(node) and not _in_wait(function, node)]
    asserts = [node.lineno for node in _own(function) if _is_assertion(node)]
    last = function.body[-1]
    while isinstance(last, ast.With | ast.AsyncWith):
        last = last.body[-1]
    at_the_end = set(ast.walk(last)) if isinstance(last, ast.Expr) else set()
    return any(sleep.lineno < max(asserts, default=0) or sleep in at_the_end for sleep in sleeps)


def _own(function: Function) -> Iterator[ast.expr | ast.stmt]:
    """Its nodes without those of the functions in it."""
    inner = {
        id(node)
        for each in ast.walk(function)
        if isinstance(each, Function) and each is not function
        for node in ast.walk(each)
    }
    for node in ast.walk(function):
        if isinstance(node, ast.expr | ast.stmt) and id(node) not in inner:
            yield node


def _is_assertion(node: ast.AST) -> bool:
    return isinstance(node, ast.Assert) or (isinstance(node, ast.Call) and ast.unparse(node.func) == "pytest.raises")


def _is_sleep(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Call)
        and ast.unparse(node.func) in SLEEPS
        and bool(node.args)
        and _is_fixed(node.args[0])
        and ast.unparse(node.args[0]) not in ("0", "0.0")
    )


def _is_fixed(seconds: ast.expr) -> bool:
    """Numbers and constants, and arithmetic with them."""
    match seconds:
        case ast.Constant():
            return True
        case ast.Name() | ast.Attribute():
            return ast.unparse(seconds).rpartition(".")[2].isupper()
        case ast.UnaryOp(operand=operand):
            return _is_fixed(operand)
        case ast.BinOp(left=left, right=right):
            return _is_fixed(left) and _is_fixed(right)
    return False


def _in_wait(function: Function, sleep: ast.AST) -> bool:
    """Whether it is the pause of a loop that a condition ends."""
    for loop in _own(function):
        if isinstance(loop, ast.While | ast.For) and any(node is sleep for node in ast.walk(loop)):
            if isinstance(loop, ast.While) and not isinstance(loop.test, ast.Constant):
                return True
            if any(isinstance(node, ast.Return | ast.Break) for node in ast.walk(loop)):
                return True
    return False


BEFORE = "async def test_it():\n    "


@pytest.mark.parametrize(
    "source",
    [
        BEFORE + "await asyncio.sleep(0.05)\n    assert calls == []",
        BEFORE + "await asyncio.sleep(2 * module.LIMIT_S)\n    x = 1\n    assert x",
        BEFORE + "time.sleep(1)\n    with pytest.raises(BlockingIOError):\n        listener.accept()",
        BEFORE + "for _ in range(5):\n        await asyncio.sleep(0.01)\n    assert calls == []",
        BEFORE + "async with x:\n        await asyncio.sleep(1)\n    assert calls == []",
        "async def settled():\n    wake()\n    await asyncio.sleep(0.05)",
        "def test_it():\n    async def inner():\n        await asyncio.sleep(1)\n        assert not calls\n    inner()",
    ],
)
def test_a_fixed_sleep_before_an_assertion_is_found(source: str) -> None:
    assert len(fixed_sleeps(ast.parse(source))) == 1


@pytest.mark.parametrize(
    "source",
    [
        BEFORE + "await asyncio.sleep(0)\n    assert calls == []",
        BEFORE + "while not calls:\n        await asyncio.sleep(0.01)\n    assert calls == [1]",
        BEFORE
        + "for _ in range(5):\n        if calls:\n            break\n        await asyncio.sleep(0.01)\n    assert x",
        BEFORE + "assert calls == []\n    await asyncio.sleep(1)\n    calls.clear()",
        BEFORE + "async def slow():\n        await asyncio.sleep(1)\n        answer()\n    assert calls == []",
        "@in_virtual_time\n" + BEFORE + "await asyncio.sleep(60)\n    assert calls == []",
    ],
)
def test_other_sleeps_are_not_found(source: str) -> None:
    assert fixed_sleeps(ast.parse(source)) == set()


def test_only_the_exceptions_sleep_before_they_assert() -> None:
    found = {
        f"{path}::{name}"
        for path, tree in trees("unit", "integration", containing="sleep")
        for name in fixed_sleeps(tree)
    }
    assert found == EXCEPTIONS, "use virtual time, wait for an event, or add an exception with its reason"
