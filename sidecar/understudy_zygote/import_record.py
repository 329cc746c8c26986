"""A record of the modules that a worker imports, in a file in memory that the zygote gets (learning.py).

The file: the length of its text in 8 bytes, then lines. Tabs separate the fields.

    MODULE ORIGIN     a top-level module that was imported, and its file
    MODULE            a module of a package that was imported
    =VARIABLE HASH    the script has changed this variable by then; the zygote hashes in the same way

Rules: the file is mapped, because a script may close all file descriptors and reuse their numbers. The record ends in
children that the worker forks. The file's content is the worker's, so it is checked for its size only: a wrong name is
a module that cannot be imported.
"""

import contextlib
import mmap
import os
import struct
import sys
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from typing import Any

_LENGTH = struct.Struct("=q")


class ImportRecord:
    """The first entry of sys.meta_path: it finds nothing, but sees which modules are imported.

    A call may also be a mere search (importlib.util.find_spec), so a module counts if sys.modules has it at the next
    call.
    """

    def __init__(self, page: mmap.mmap) -> None:
        self._page = page
        self._end = _LENGTH.size
        self._is_full = False
        self._searched = ""  # the line of the previous call
        self._variables = dict(os.environ)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        if self._is_full:
            return
        if self._searched and self._searched.partition("\t")[0] in sys.modules:
            self._write(self._searched)
        self._searched = ""
        if path is not None:
            self._searched = name
            return
        with contextlib.suppress(Exception):  # the other finders report it
            origin = origin_of(PathFinder.find_spec(name))
            if origin:
                self._write_variables()
                self._searched = f"{name}\t{origin}"

    def end(self) -> None:
        """Called in forks of the process too."""
        with contextlib.suppress(ValueError):
            sys.meta_path.remove(self)

    def _write_variables(self) -> None:
        for name, value in os.environ.items():
            if self._variables.get(name) != value:
                self._variables[name] = value
                self._write(f"={name}\t{hash(value)}")

    def _write(self, line: str) -> None:
        data = line.encode(errors="replace") + b"\n"
        if self._is_full or self._end + len(data) > len(self._page):
            # Python iterates over sys.meta_path: if this entry were removed now, the search would skip the next one
            self._is_full = True
            return
        self._page[self._end : self._end + len(data)] = data
        self._end += len(data)
        _LENGTH.pack_into(self._page, 0, self._end - _LENGTH.size)


def record_imports(file: int) -> None:
    """Record the imports of this process from now on. file: closed here."""
    with contextlib.suppress(OSError, ValueError):
        record = ImportRecord(mmap.mmap(file, 0))
        sys.meta_path.insert(0, record)
        os.register_at_fork(after_in_child=record.end)
    os.close(file)


@dataclass
class Recorded:
    """names: in the order of the starts of their imports. origins: of top-level modules."""

    names: list[str] = field(default_factory=list)
    origins: dict[str, str] = field(default_factory=dict)
    variables: dict[str, dict[str, str]] = field(default_factory=dict)  # by module: those that the script had changed


def read(file: int) -> Recorded:
    """file: closed here. Its worker may still write to it."""
    try:
        content = os.pread(file, os.fstat(file).st_size, 0)
        (length,) = _LENGTH.unpack_from(content)
    except (OSError, struct.error):
        return Recorded()
    finally:
        os.close(file)
    return _parse(content[_LENGTH.size : _LENGTH.size + max(0, length)].decode(errors="replace"))


def _parse(text: str) -> Recorded:
    recorded = Recorded()
    changed: dict[str, str] = {}
    for line in text.splitlines():
        name, _, rest = line.partition("\t")
        if line.startswith("="):
            changed = {**changed, name[1:]: rest}
        elif name:
            recorded.names.append(name)
            recorded.variables[name] = changed
            if rest:
                recorded.origins[name] = rest
    return recorded


def origin_of(spec: Any) -> str:
    """The file of a module or, for a package without a file, its first folder. "" if it has none."""
    if spec is None:
        return ""
    if spec.origin:
        return str(spec.origin)
    return next(iter(spec.submodule_search_locations or ()), "")
