"""Which interpreter a container's command runs, with which options, and what it runs: what a zygote has to know. Pure.

Rules: what is not understood is no program for a zygote, and starts as a fresh process each time, as written. That is
so for what is not Python, for `python -i` and `python -`, for folders, zip files and compiled files, and for an `env`
with options.
"""

import os
import re
import shutil
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITH_VALUE, _FLAGS = "WX", "bBdEIOPqRsSuv"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_SHEBANG_BYTES = 256
FILE, MODULE, CODE = "file", "module", "code"


@dataclass(frozen=True)
class PythonProgram:
    """`interpreter` with its `options` runs `target`, which is a file, a module (-m) or code (-c), with `arguments`."""

    interpreter: str
    options: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()  # what an `env` before it sets


def python_program(command: Sequence[str]) -> Optional[PythonProgram]:
    """What a command runs, if that is a program of Python's which a zygote can run as well."""
    program = python_call(command)
    return None if program is None or (program.kind == FILE and not _is_source(program.target)) else program


def python_call(command: Sequence[str]) -> Optional[PythonProgram]:
    """The same, whatever the file is that it runs, and whether or not there is one."""
    words, env = _without_env(list(command))
    if not words:
        return None
    if not _PYTHON.fullmatch(os.path.basename(words[0])):
        words = _by_shebang(words)
    if not words or not _PYTHON.fullmatch(os.path.basename(words[0])):
        return None
    program = _parse(words)
    if program is None:
        return None
    return PythonProgram(words[0], *program, env)


def same_start(one: Optional[PythonProgram], other: PythonProgram) -> bool:
    """Whether a zygote that was started for the one can run the other."""
    return one is not None and (one.interpreter, one.options, one.env) == (other.interpreter, other.options, other.env)


def _without_env(words: list[str]) -> tuple[list[str], tuple[tuple[str, str], ...]]:
    if not words or os.path.basename(words[0]) != "env":
        return words, ()
    env, rest = [], words[1:]
    while rest and _ASSIGNMENT.fullmatch(rest[0]):
        name, _, value = rest.pop(0).partition("=")
        env.append((name, value))
    return rest, tuple(env)


def _by_shebang(words: list[str]) -> list[str]:
    """The words that the kernel makes of a script that is executed."""
    path = shutil.which(words[0])
    if path is None:
        return []
    try:
        with open(path, "rb") as file:
            first = file.readline(_SHEBANG_BYTES).decode(errors="replace")
    except OSError:
        return []
    if not first.startswith("#!"):
        return []
    interpreter, _, argument = first[2:].strip().partition(" ")
    found, _ = _without_env([interpreter, *([argument.strip()] if argument.strip() else [])])
    return [*found, path, *words[1:]] if found else []


def _parse(words: list[str]) -> Optional[tuple[tuple[str, ...], str, str, tuple[str, ...]]]:
    """(options, kind, target, arguments), as Python reads its command line."""
    at = 1
    while at < len(words):
        word = words[at]
        if not word.startswith("-"):
            return tuple(words[1:at]), FILE, word, tuple(words[at + 1 :])
        if word == _LONG_WITH_VALUE:
            at += 2
        elif word in ("-", "--") or word.startswith("--"):
            return None
        else:
            ends, kind, attached = _read_flags(word)
            if ends is None:
                return None
            if kind:
                flags = (word[:ends],) if ends > 1 else ()  # what comes before the m or c of one word
                rest = words[at + 1 :] if attached is None else [attached, *words[at + 1 :]]
                return ((*words[1:at], *flags), kind, rest[0], tuple(rest[1:])) if rest else None
            at += ends
    return None


def _read_flags(word: str) -> tuple[Optional[int], str, Optional[str]]:
    """(how many words this option takes, "", None); for -m and -c (where in the word, kind, what is attached).

    None in place of the number: it is an option that no zygote is made for.
    """
    for place, letter in enumerate(word[1:], 1):
        attached = word[place + 1 :] or None
        if letter in "mc":
            return place, MODULE if letter == "m" else CODE, attached
        if letter in _WITH_VALUE:
            return (2 if attached is None else 1), "", None
        if letter not in _FLAGS:
            return None, "", None
    return 1, "", None


def _is_source(path: str) -> bool:
    return os.path.isfile(path) and not path.endswith(".pyc") and not zipfile.is_zipfile(path)
