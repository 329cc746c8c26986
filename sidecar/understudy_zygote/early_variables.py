"""Detects that a script sets variables that a module reads during its import, before the script imports that module.

A fork has already imported the module, so the variable would have no effect: that worker must be a fresh process.

Rules: the script is parsed, not run. Only variables that the script itself sets are found, not those set by its
modules. A line counts as run before another one if it precedes it, also within functions. If a script computes the
names of the variables that it sets, in a loop for instance, each known name that precedes the import counts. A value
that the variable already has changes nothing. If a script leaves the import to modules that are not known here, the
import counts as the last import of the script. A script that cannot be parsed fails when it runs.
"""

import ast
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from typing import Optional, Union

from understudy_zygote.script import CODE, FILE, Program

_THREADS = ("OMP_", "GOMP_", "KMP_", "MKL_")
#: Prefixes of the variables that a module reads during its import.
_READ_AT_IMPORT = {
    "torch": (*_THREADS, "TORCH", "PYTORCH_"),
    "numpy": (*_THREADS, "OPENBLAS_", "GOTO_", "BLIS_", "NPY_"),
    "numexpr": (*_THREADS, "NUMEXPR_"),
    "numba": ("NUMBA_",),
    "jax": ("JAX_",),
    "tensorflow": ("TF_",),
    "huggingface_hub": ("HF_", "HUGGINGFACE_"),
    "transformers": ("HF_", "TRANSFORMERS_"),
    "datasets": ("HF_",),
}
#: Modules that import others of these.
_ON_TORCH = ("accelerate", "deepspeed", "lightning", "pytorch_lightning", "torchaudio", "torchvision", "transformers")
_IMPORTED_BY = {
    "torch": _ON_TORCH,
    "numpy": ("torch", *_ON_TORCH),
    "huggingface_hub": ("accelerate", "datasets", "diffusers", "transformers"),
}
#: Exceptions: these are read later.
_READ_LATER = (
    "TORCH_NCCL_",
    "TORCH_GLOO_",
    "TORCH_FR_",
    "TORCHELASTIC_",
    "TORCH_HOME",
    "TORCH_EXTENSIONS_DIR",
    "TORCH_CUDA_ARCH_LIST",
    "TORCHINDUCTOR_CACHE_DIR",
    "PYTORCH_CUDA_ALLOC_CONF",
    "PYTORCH_ALLOC_CONF",
)
_LONGEST_SOURCE = 1 << 22
Position = tuple[int, int]  # line and column


@dataclass(frozen=True)
class _Setting:
    """name: None if it is computed. value: None if it is computed, or if the variable is removed."""

    at: Position
    name: Optional[str]
    value: Optional[str] = None
    if_unset: bool = False


def fresh_start_reason(program: Program) -> str:
    """Why this program would run differently in a fork than in a fresh process; "" if it would not."""
    source = _source(program)
    if b"env" not in source:
        return ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they appear when the script runs
            tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ""
    found = _first(list(ast.walk(tree)))
    if found is None:
        return ""
    module, name, (line, _) = found
    return (
        f"line {line} sets {name} before the script imports {module}, which reads it during its import. The fork "
        f"server has already imported {module}, so this worker starts as a new process. Set {name} in the container's "
        "env to fork workers"
    )


def readers() -> list[str]:
    """The imported modules that read variables during their import."""
    return [module for module in _READ_AT_IMPORT if module in sys.modules]


def _first(nodes: Sequence[ast.AST]) -> "Optional[tuple[str, str, Position]]":
    """The module, the variable, and the position of the assignment."""
    settings = sorted(_settings(nodes), key=lambda setting: setting.at)
    for module, prefixes in _READ_AT_IMPORT.items():
        if module in sys.modules:
            end = _first_import(nodes, module)
            for setting in (setting for setting in settings if setting.at < end):
                names = _texts(nodes, end) if setting.name is None else [setting.name]
                for name in (name for name in names if name.startswith(prefixes) and not name.startswith(_READ_LATER)):
                    if _changes(name, setting):
                        return module, name, setting.at
    return None


def _changes(name: str, setting: _Setting) -> bool:
    if setting.if_unset and name in os.environ:
        return False
    return setting.name is None or setting.value is None or os.environ.get(name) != setting.value


def _first_import(nodes: Sequence[ast.AST], module: str) -> Position:
    """The position of the script's first import of the module, or else of its last import outside functions."""
    imports = [node for node in nodes if isinstance(node, (ast.Import, ast.ImportFrom))]
    importers = {module, *_IMPORTED_BY.get(module, ())}
    known = [_at(node) for node in imports if importers.intersection(_imported(node))]
    return min(known) if known else max((_at(node) for node in imports if node.col_offset == 0), default=(0, 0))


def _imported(node: Union[ast.Import, ast.ImportFrom]) -> list[str]:
    """The top-level names of the packages."""
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    return [name.partition(".")[0] for name in names]


def _settings(nodes: Sequence[ast.AST]) -> Iterator[_Setting]:
    for node in nodes:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                yield from _assigned(target, node.value)
        elif isinstance(node, ast.AugAssign) and _is_environ(node.target):
            yield from _entries(node.value)
        elif isinstance(node, ast.Call):
            yield from _called(node)


def _assigned(target: ast.expr, value: ast.expr) -> Iterator[_Setting]:
    if isinstance(target, ast.Subscript) and _is_environ(target.value):
        yield _Setting(_at(target), _text(target.slice), _text(value))


def _called(call: ast.Call) -> Iterator[_Setting]:
    function = call.func
    if not isinstance(function, ast.Attribute) or not (call.args or call.keywords):
        return
    texts = [_text(argument) for argument in call.args[:2]] + [None, None]
    if function.attr == "putenv":
        yield _Setting(_at(call), texts[0], texts[1])
    elif function.attr == "setdefault" and _is_environ(function.value):
        yield _Setting(_at(call), texts[0], texts[1], if_unset=True)
    elif function.attr == "update" and _is_environ(function.value):
        for argument in call.args:
            yield from _entries(argument)
        for keyword in call.keywords:
            yield _Setting(_at(call), keyword.arg, _text(keyword.value))


def _entries(mapping: ast.expr) -> Iterator[_Setting]:
    if not isinstance(mapping, ast.Dict):
        yield _Setting(_at(mapping), None)
        return
    for key, value in zip(mapping.keys, mapping.values):
        yield _Setting(_at(mapping), None if key is None else _text(key), _text(value))


def _is_environ(node: ast.expr) -> bool:
    return getattr(node, "attr", getattr(node, "id", "")) == "environ"


def _text(node: ast.expr) -> Optional[str]:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def _texts(nodes: Sequence[ast.AST], end: Position) -> list[str]:
    """All string constants before that position."""
    constants = (node for node in nodes if isinstance(node, ast.Constant) and _at(node) < end)
    return [node.value for node in constants if isinstance(node.value, str)]


def _at(node: Union[ast.expr, ast.stmt]) -> Position:
    return node.lineno, node.col_offset


def _source(program: Program) -> bytes:
    """b"" if there is no source that Python would compile."""
    if program.kind == CODE:
        return program.target.encode(errors="replace")
    path = program.target if program.kind == FILE else _path_of(program.target)
    try:
        with open(path, "rb") as file:
            source = file.read(_LONGEST_SOURCE + 1)
    except OSError:
        return b""
    return source if len(source) <= _LONGEST_SOURCE else b""


def _path_of(module: str) -> str:
    """Finds the module without importing its packages."""
    path: Optional[Sequence[str]] = None
    found = ""
    for name in (*_prefixes(module), f"{module}.__main__"):
        spec = PathFinder.find_spec(name, path)
        if spec is None:
            break
        found, path = spec.origin or "", spec.submodule_search_locations
        if path is None:
            break
    return found if found.endswith(".py") else ""


def _prefixes(module: str) -> list[str]:
    """For a.b.c: a, a.b, a.b.c."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts) + 1)]
