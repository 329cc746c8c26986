"""Acts on a module once it is imported, without importing it: a script may set variables for its import."""

import contextlib
import sys
from importlib.machinery import ModuleSpec
from typing import Any, Callable, Optional


def after_import(name: str, act: Callable[[Any], None]) -> None:
    """Call act(module) now if the module is imported, else when the script has imported it."""
    if name in sys.modules:
        act(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Finder(name, act))


class _Finder:
    """An entry of sys.meta_path. The others find the module; its loader then also acts."""

    def __init__(self, name: str, act: Callable[[Any], None]) -> None:
        self._name, self._act = name, act

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Optional[ModuleSpec]:
        if name != self._name:
            return None
        sys.meta_path.remove(self)
        for finder in list(sys.meta_path):
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _after_execution(spec.loader, self._act)
                return spec
        return None


def _after_execution(loader: Any, act: Callable[[Any], None]) -> None:
    execute = loader.exec_module

    def exec_module(module: Any) -> None:
        execute(module)
        act(module)

    with contextlib.suppress(AttributeError):  # a loader of C
        loader.exec_module = exec_module
