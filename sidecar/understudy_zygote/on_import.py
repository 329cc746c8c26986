"""Acts on a module once it is imported, without importing it: a script may set variables for its import.

Rules: a module of another version may lack the expected attributes. No error about these reaches the script.
"""

import contextlib
import sys
from importlib.machinery import ModuleSpec
from typing import Any, Callable, Optional


def after_import(name: str, act: Callable[[Any], None]) -> None:
    """Call act(module) now if the module is imported, else when the script has imported it."""
    if name in sys.modules:
        _act(act, sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


def _act(act: Callable[[Any], None], module: Any) -> None:
    with contextlib.suppress(Exception):
        act(module)


class _Finder:
    """An entry of sys.meta_path. The others find the module; its loader then also acts."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            find: Any = getattr(finder, "find_spec", None)  # Python 3.11 and older also have others
            spec: Optional[ModuleSpec] = None if find is None else find(name, path, target)
            if spec is not None and spec.loader is not None:
                _after_execution(spec.loader, self._act)
                return spec
        return None


def _after_execution(loader: Any, act: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        _act(act, module)

    with contextlib.suppress(AttributeError):  # a loader of C
        loader.exec_module = exec_module
