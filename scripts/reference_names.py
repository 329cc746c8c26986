"""The names that the operator writes for users, read from its source: phases, conditions with reasons, and events.

The code has no list of conditions and events: each decision names its own. So this module parses the operator's source.
An event is a call `Event(type, reason, …)`. A condition is a tuple of type, status, reason and message in a function
whose annotations contain `DesiredCondition`. A name is resolved by importing its module, or by the assignments in its
function. COMPUTED lists the values of all other expressions, as far as possible from the code. An expression that it
does not list fails the check, so a new condition or event cannot be forgotten.
"""

import ast
import importlib
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import ModuleType

from scripts.reference_fields import read_crd
from understudy_operator.plan.facts import launcher_choice, refusals, spec
from understudy_operator.plan.jobset import outcome
from understudy_operator.plan.pool import pool_condition, pool_status
from understudy_operator.plan.status import conditions

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "operator"
EVENT, CONDITION = "Event", "DesiredCondition"
JOB, POOL = "TrainingJob, InjectedJob", "HotSparePool"
OTHER = "Job, JobSet, PyTorchJob"
#: Modules whose conditions and events are on another kind than a job.
KINDS = {"understudy_operator.plan.pool.pool_status": POOL, "understudy_operator.plan.injection.targets": OTHER}


class UnknownName(Exception):
    """The values of an expression are not known. The message has its place and the fix."""


@dataclass(frozen=True, order=True)
class Name:
    """A condition (kind: its type) or an event (kind: Normal or Warning), on objects of `of`."""

    of: str
    kind: str
    reason: str


def phases() -> tuple[str, ...]:
    """In the order of the API."""
    status = read_crd("trainingjobs")["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    return tuple(status["properties"]["phase"]["enum"])


def _ends() -> tuple[str, ...]:
    return (outcome.COMPLETED_REASON, *sorted(_reasons_of("Failed", outcome)))


def _restarts() -> tuple[str, ...]:
    return tuple(sorted(_reasons_of("Restart", outcome)))


def _policy_actions() -> tuple[str, ...]:
    return tuple(action.value for action in spec.Action)


def _pool_reasons() -> tuple[str, ...]:
    """The reasons of the condition PoolAvailable. All but the first are reasons of an event, too."""
    return (
        pool_condition.CLAIMED,
        pool_condition.EMPTY,
        pool_condition.NOT_FOUND,
        pool_condition.UNSCHEDULABLE,
        pool_condition.CLAIM_REJECTED,
    )


def _refused() -> tuple[str, ...]:
    return tuple(reason.value for reason in refusals.RefusalKind)


def _nothing_new() -> tuple[str, ...]:
    """The expression copies a condition that status has."""
    return ()


#: (function, expression): its values.
COMPUTED: Mapping[tuple[str, str], Callable[[], tuple[str, ...]]] = {
    ("plan_conditions", "phase"): phases,
    ("plan_conditions", "ready_reason"): lambda: (*(conditions.ENDED.get(x, x) for x in phases()), conditions.SHRUNK),
    ("plan_conditions", "reason"): _ends,
    ("_fault_tolerant", "choice.reason.value"): lambda: tuple(x.value for x in launcher_choice.LauncherReason),
    ("_refusal_condition", "kind"): lambda: ("Invalid", "Blocked"),
    ("_refusal_condition", "refusal.kind.value"): _refused,
    ("_startup", "kind"): lambda: conditions.STARTUP,
    ("unchanged", "entry.type"): _nothing_new,
    ("_keep_conditions", "condition.type"): _nothing_new,
    ("_blocked", "refusal.kind.value"): _refused,
    ("_after_failure", "action.value"): _policy_actions,
    ("plan_events", "reason"): _restarts,
    ("_recorded", "end"): lambda: ("Completed", "Failed"),
    ("pool_events", "after.reason"): _pool_reasons,
    ("_events", "new.reason"): lambda: ("Rolling", pool_status.UNSCHEDULABLE, *_refused()),
    ("_events", "reason"): lambda: (pool_status.PREEMPTED, pool_status.EVICTED, pool_status.UNSCHEDULABLE),
}


@cache
def events() -> frozenset[Name]:
    return frozenset(
        Name(_kind_of(place.module), kind, reason)
        for place in _places()
        for node in ast.walk(place.function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == EVENT
        for kind in place.values(node.args[0])
        for reason in place.values(node.args[1])
    )


@cache
def all_conditions() -> frozenset[Name]:
    """Recovering, Completed and Failed have the phase as their reason while they are False."""
    return frozenset(
        Name(_kind_of(place.module), kind, reason)
        for place in _places()
        if _has_conditions(place.function)
        for node in ast.walk(place.function)
        if isinstance(node, ast.Tuple) and len(node.elts) in (3, 4) and _is_type(place, node)
        for kind in place.values(node.elts[0])
        for reason in _reasons(place, node)
    )


def _kind_of(module: ModuleType) -> str:
    return KINDS.get(module.__name__, JOB)


def _has_conditions(function: ast.FunctionDef) -> bool:
    inside = (node.annotation for node in ast.walk(function) if isinstance(node, ast.AnnAssign))
    return any(CONDITION in ast.unparse(note) for note in (function.returns, *inside) if note is not None)


def _is_type(place: "Place", node: ast.Tuple) -> bool:
    """Whether the tuple is a condition. With three elements, its last one is a starred pair of reason and message."""
    return isinstance(node.ctx, ast.Load) and (len(node.elts) == 4 or isinstance(node.elts[-1], ast.Starred))


def _reasons(place: "Place", node: ast.Tuple) -> list[str]:
    reason = node.elts[2]
    if not isinstance(reason, ast.Starred):
        return place.values(reason)
    pairs = [pair for pair in ast.walk(reason.value) if isinstance(pair, ast.Tuple)]
    return [value for pair in pairs for value in place.values(pair.elts[0])]


def _reasons_of(outcome_class: str, module: ModuleType) -> set[str]:
    """The first arguments of each call of that class in the module."""
    return {
        reason
        for place in _places_of(module)
        for node in ast.walk(place.function)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == outcome_class
        for reason in place.values(node.args[0])
    }


@dataclass(frozen=True)
class Place:
    module: ModuleType
    function: ast.FunctionDef

    def values(self, node: ast.expr) -> list[str]:
        """Every text that the expression may have. Raises UnknownName."""
        match node:
            case ast.Constant(value=str(text)):
                return [text]
            case ast.IfExp():
                return [*self.values(node.body), *self.values(node.orelse)]
            case ast.JoinedStr():
                parts = (self.values(part) for part in node.values)
                return ["".join(combined) for combined in itertools.product(*parts)]
            case ast.FormattedValue():
                return self.values(node.value)
        source = ast.unparse(node)
        if (known := COMPUTED.get((self.function.name, source))) is not None:
            return list(known())
        if isinstance(node, ast.Name):
            if isinstance(value := getattr(self.module, node.id, None), str):
                return [value]
            if assigned := [value for one in self._assigned(node.id) for value in self.values(one)]:
                return assigned
        raise UnknownName(
            f"{self.module.__name__}, line {node.lineno}: the values of `{source}` are not known: add "
            f"({self.function.name!r}, {source!r}) to COMPUTED in scripts/reference_names.py"
        )

    def _assigned(self, name: str) -> Iterator[ast.expr]:
        for node in ast.walk(self.function):
            if not isinstance(node, ast.Assign):
                continue
            match node.targets[0], node.value:
                case ast.Name(id=target), value if target == name:
                    yield value
                case ast.Tuple(elts=targets), ast.Tuple(elts=values):
                    yield from (
                        value for target, value in zip(targets, values, strict=True) if ast.unparse(target) == name
                    )


@cache
def _places() -> tuple[Place, ...]:
    files = sorted((SOURCES / "understudy_operator").rglob("*.py"))
    found = tuple(itertools.chain.from_iterable(_places_in(file) for file in files))
    if not any(_has_conditions(place.function) for place in found):
        raise UnknownName(f"no function has an annotation with {CONDITION}: adapt scripts/reference_names.py")
    return found


def _places_in(file: Path) -> Iterable[Place]:
    text = file.read_text(encoding="utf-8")
    if not (f"{EVENT}(" in text or CONDITION in text):
        return ()
    module = importlib.import_module(".".join(file.relative_to(SOURCES).with_suffix("").parts))
    return _functions(module, text)


def _places_of(module: ModuleType) -> Iterable[Place]:
    return _functions(module, Path(str(module.__file__)).read_text(encoding="utf-8"))


def _functions(module: ModuleType, text: str) -> Iterator[Place]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield Place(module, node)  # type: ignore[arg-type]
