"""Learns from a worker which modules a training imports, and imports them in a fork of the zygote, the next zygote.

A worker records its imports (import_record.py). The zygote forks; the fork imports the modules, and then serves as a
zygote for the next rounds. If a module prevents forks, or would behave differently in a fork, this fork ends, and the
launcher tries again without the module.

Rules: only installed modules are learned, which are those of the standard library and of folders that hold metadata of
packages (*.dist-info). So the script's own modules are imported anew in each worker. A module is not learned if its
import
- starts threads, or initializes CUDA (fitness.py)
- reads a variable that has another value in each worker or round, such as RANK
- reads a variable that the script had changed by then (early_variables.py looks for them in the script's text, too)
"""

import contextlib
import glob
import importlib
import os
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Any, Callable, Optional

from understudy_zygote import early_variables
from understudy_zygote.fitness import ForkSafety
from understudy_zygote.import_record import Recorded, origin_of
from understudy_zygote.script import MODULE, Program, first_path

_OURS = ("understudy_torch", "understudy_jax", "understudy_protocol", "understudy_zygote", "understudy_rollout")
#: At most this many modules are learned, with names of this many characters together: they travel in messages. Longer
#: names, and names in other characters than ASCII, are not learned.
MOST_MODULES, MOST_CHARACTERS, LONGEST_NAME = 500, 16_000, 200


@dataclass(frozen=True)
class ImportResult:
    """modules: those whose import was needed. Each imports further ones. refused: a module that prevents forks."""

    modules: tuple[str, ...]
    refused: str = ""
    reason: str = ""


def import_learned(
    recorded: Recorded,
    program: Program,
    fitness: ForkSafety,
    round_variables: Collection[str],
    left_out: Collection[str],
) -> ImportResult:
    """Import the modules. Stops at the first that prevents forks, because this process cannot undo its import.

    round_variables: have other values in each worker or round.
    """
    modules: list[str] = []
    base = {name.partition(".")[0] for name in sys.modules}
    allowed: dict[str, bool] = {}
    readers = early_variables.readers()
    for name in recorded.names:
        top = name.partition(".")[0]
        if top not in allowed:
            allowed[top] = top not in _OURS and (top in base or _is_the_same(top, recorded.origins.get(top), program))
        if name in sys.modules or not allowed[top] or _is_left_out(name, left_out) or _runs(program, name):
            continue
        if len(name) > LONGEST_NAME or not name.isascii():
            continue
        if len(modules) == MOST_MODULES or sum(map(len, modules)) > MOST_CHARACTERS:
            break
        reads = _Reads(round_variables, recorded.variables.get(name, {}))
        with reads.watched(), contextlib.suppress(Exception, SystemExit):  # it failed in the worker as well
            importlib.import_module(name)
        if name not in sys.modules and not reads.reason():
            continue
        fitness.imported(name)
        reason = fitness.unsafe_import() or reads.reason()
        if not reason and early_variables.readers() != readers:
            readers, reason = early_variables.readers(), early_variables.fresh_start_reason(program)
        if reason:
            return ImportResult(tuple(modules), name, reason)
        modules.append(name)
    return ImportResult(tuple(modules))


def named(modules: Sequence[str]) -> Recorded:
    """Modules that another pod of the job has learned: found where this pod's Python finds them."""
    tops = dict.fromkeys(name.partition(".")[0] for name in modules)
    found = {top: _find(top) for top in tops if top not in sys.modules}
    return Recorded(list(modules), {top: origin for top, origin in found.items() if origin})


class _Reads:
    """Notes which of the variables an import reads, if their value here is not the one in the worker."""

    def __init__(self, of_round: Collection[str], changed: "dict[str, str]") -> None:
        self._of_round, self._changed = of_round, changed
        self._seen = ""

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        def note(name: Any, original: Any) -> None:
            if not self._seen and self._is_other(name, original):
                self._seen = name

        with _watched_reads(note):
            yield

    def _is_other(self, name: Any, original: Any) -> bool:
        if name in self._of_round:
            return True
        if name not in self._changed:
            return False
        try:
            return bool(str(hash(original(os.environ, name))) != self._changed[name])
        except KeyError:
            return True

    def reason(self) -> str:
        if not self._seen:
            return ""
        if self._seen in self._of_round:
            return f"its import reads {self._seen}, which has another value in each worker or round"
        return f"its import reads {self._seen}, which the script sets before"


@contextlib.contextmanager
def noted_reads(names: set[str]) -> Iterator[None]:
    """Add the names of the variables that are read meanwhile."""

    def note(name: Any, original: Any) -> None:
        if isinstance(name, str):
            names.add(name)

    with _watched_reads(note):
        yield


@contextlib.contextmanager
def _watched_reads(note: Callable[[Any, Any], None]) -> Iterator[None]:
    """note: called before each read of a variable, with its name and the function that reads it from os.environ."""
    environ: Any = type(os.environ)
    original = environ.__getitem__

    def getitem(mapping: Any, name: Any) -> Any:
        if mapping is os.environ:
            note(name, original)
        return original(mapping, name)

    environ.__getitem__ = getitem
    try:
        yield
    finally:
        environ.__getitem__ = original


def _is_left_out(name: str, left_out: Collection[str]) -> bool:
    """A module of a package that is left out would import the package."""
    return any(name == package or name.startswith(f"{package}.") for package in left_out)


def _runs(program: Program, name: str) -> bool:
    """Whether the module is the program itself, which runpy runs under another name."""
    return program.kind == MODULE and name in (program.target, f"{program.target}.__main__")


def _is_the_same(top: str, origin: Optional[str], program: Program) -> bool:
    """Whether this process finds the module where the worker has found it, and it is installed."""
    if not origin or _find(top) != origin or not _is_installed(origin):
        return False
    return PathFinder.find_spec(top, [first_path(program)]) is None  # the script's folder comes first on the path


def _find(top: str) -> str:
    with contextlib.suppress(Exception):
        return origin_of(PathFinder.find_spec(top))
    return ""


def _is_installed(origin: str) -> bool:
    folder = os.path.dirname(origin)
    if os.path.basename(origin).startswith("__init__."):
        folder = os.path.dirname(folder)
    standard = os.path.dirname(os.__file__)
    if folder in (standard, os.path.join(standard, "lib-dynload")):
        return True
    return bool(glob.glob(os.path.join(glob.escape(folder), "*.dist-info")))
