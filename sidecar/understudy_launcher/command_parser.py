"""Parse a container's command: the interpreter, its options and the program, as the zygote needs them. Pure.

A command that this parser does not understand is no program for a zygote: the launcher starts it as a fresh process
each time. Examples are a command that is not Python, `python -i`, `python -`, folders, zip files, compiled files, and
an `env` with options.
"""

import os
import re
import shutil
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Optional

from understudy_protocol import command_words

_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITH_VALUE, _FLAGS = "WX", "bBdEIOPqRsSuv"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_SHEBANG_BYTES = 256
_MOST_SCRIPTS, _SCRIPT_BYTES = 16, 1 << 20
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
FILE, MODULE, CODE = "file", "module", "code"


@dataclass(frozen=True)
class PythonProgram:
    """`interpreter` with its `options` runs `target`, which is a file, a module (-m) or code (-c), with `arguments`."""

    interpreter: str
    options: tuple[str, ...]
    kind: str
    target: str
    arguments: tuple[str, ...]
    env: tuple[tuple[str, str], ...] = ()  # set by an `env` before it


def python_program(command: Sequence[str]) -> Optional[PythonProgram]:
    """The program of a command, if it is a Python program that a zygote can also run; else None."""
    program = python_call(command)
    return None if program is None or (program.kind == FILE and not _is_source(program.target)) else program


def python_call(command: Sequence[str]) -> Optional[PythonProgram]:
    """Like python_program, for any file, also one that does not exist."""
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


def calls_torchrun(command: Sequence[str], env: Mapping[str, str]) -> bool:
    """Also True if a shell script that the command names, or accelerate's configuration, calls torchrun. Any other
    Python program does not count as a call. env: of the command.
    """
    configurations = command_words.accelerate_configurations(command)
    if command_words.calls_torchrun(command) or _configures_torchrun(configurations, env):
        return True
    if python_call(command) is not None:
        return False
    texts = [_script_text(word) for word in command[:_MOST_SCRIPTS]]
    return any(
        command_words.text_calls_torchrun(text) or _configures_torchrun(command_words.text_configurations(text), env)
        for text in texts
    )


def _configures_torchrun(paths: Sequence[str], env: Mapping[str, str]) -> bool:
    """paths: of accelerate's configuration files; "" is the default one."""
    found = (_content(_expanded(path, env) or _default_configuration(env)) for path in paths[:_MOST_SCRIPTS])
    return any(command_words.configuration_calls_torchrun(text) for text in found)


def _default_configuration(env: Mapping[str, str]) -> str:
    cache = env.get("XDG_CACHE_HOME", "~/.cache")
    folder = env.get("HF_HOME", os.path.join(cache, "huggingface"))
    return _expanded(os.path.join(folder, "accelerate", "default_config.yaml"), env)


def _expanded(path: str, env: Mapping[str, str]) -> str:
    """As a shell does: `~`, $NAME and ${NAME}."""
    home = env.get("HOME") or os.path.expanduser("~")
    path = home + path[1:] if path == "~" or path.startswith("~/") else path
    return _VARIABLE.sub(lambda found: env.get(found[1] or found[2], ""), path)


def same_start(one: Optional[PythonProgram], other: PythonProgram) -> bool:
    """Whether a zygote that was started for one of these programs can run the other."""
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
    """The arguments that the kernel passes when it executes a script."""
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


def _script_text(word: str) -> str:
    """The content of a script; "" if the word names none."""
    path = word if os.path.isfile(word) else shutil.which(word)
    return "" if path is None else _content(path)


def _content(path: str) -> str:
    """The text of a file; "" if it is no file with at most 1 MiB of text."""
    try:
        if not os.path.isfile(path) or os.path.getsize(path) > _SCRIPT_BYTES:
            return ""
        with open(path, "rb") as file:
            content = file.read(_SCRIPT_BYTES)
    except (OSError, ValueError):
        return ""
    return "" if b"\0" in content else content.decode(errors="replace")


def _parse(words: list[str]) -> Optional[tuple[tuple[str, ...], str, str, tuple[str, ...]]]:
    """(options, kind, target, arguments), as Python parses its command line."""
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
                flags = (word[:ends],) if ends > 1 else ()  # flags before the m or c in the same word
                rest = words[at + 1 :] if attached is None else [attached, *words[at + 1 :]]
                return ((*words[1:at], *flags), kind, rest[0], tuple(rest[1:])) if rest else None
            at += ends
    return None


def _read_flags(word: str) -> tuple[Optional[int], str, Optional[str]]:
    """For an option: (number of words it takes, "", None). For -m and -c: (position in the word, kind, attached text).

    The number is None for an option that a zygote does not support.
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
