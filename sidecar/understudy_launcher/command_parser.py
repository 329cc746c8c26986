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

from understudy_protocol import command_words, pod

_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITH_VALUE, _FLAGS = "WX", "bBdEIOPqRsSuv"
_LONG_WITH_VALUE = "--check-hash-based-pycs"
_SHEBANG_BYTES = 256
_MOST_SCRIPTS, _SCRIPT_BYTES, _MOST_PARTS = 16, 1 << 20, 1000
#: Words of a shell text that precede a program: reserved words, and programs that run another one.
_BEFORE = (
    r"if|then|elif|else|while|until|do|!|exec|env|nohup|time|timeout|nice|numactl|taskset|stdbuf|setsid|tini|dumb-init"
    r"|source|\.|(?:/[^\s;&|]{0,255}/)?(?:ba|da|z|k)?sh"
    r"|[A-Za-z_][A-Za-z0-9_]{0,255}=[^\s;&|(]{0,1024}|-[^\s;&|]{0,255}|[0-9][^\s;&|]{0,255}"
)
#: The program of each command in a shell text, or the script that a shell runs.
_PROGRAM = re.compile(
    rf"(?:^|[;&|({{])[ \t]*(?:(?:{_BEFORE})[ \t]+){{0,32}}[\"']?([^\s;&|()<>`\"']{{1,4096}})", re.MULTILINE
)
_CHANGES_FOLDER = re.compile(r"(?:^|[;&|({])[ \t]*cd[ \t]+(?:--[ \t]+)?[\"']?([^\s;&|)\"']{1,4096})", re.MULTILINE)
_SHELL = re.compile(r"\b(?:ba|da|z|k|a)?sh\b")
_SHELL_SUFFIXES = ("", ".sh", ".bash", ".zsh", ".ksh")
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
    launches = command_words.accelerate_launches(command)
    if command_words.calls_torchrun(command) or _any_calls_torchrun(launches, _folders(command, env), env):
        return True
    if python_call(command) is not None:
        return False
    return any(
        command_words.text_calls_torchrun(text)
        or _any_calls_torchrun(command_words.accelerate_launches_in(text), _folders([*command, text], env), env)
        for text in _shell_scripts(command, env)
    )


def _any_calls_torchrun(
    launches: Sequence[command_words.AccelerateLaunch], folders: Sequence[str], env: Mapping[str, str]
) -> bool:
    """folders: in which paths may be."""
    return any(_launch_calls_torchrun(launch, folders, env) for launch in launches[:_MOST_SCRIPTS])


def _launch_calls_torchrun(
    launch: command_words.AccelerateLaunch, folders: Sequence[str], env: Mapping[str, str]
) -> bool:
    """As accelerate decides."""
    path = _expanded(launch.configuration, env)
    if path:
        texts = (_content(os.path.join(folder, path)) for folder in folders)
        return any(command_words.configuration_calls_torchrun(text) for text in texts)
    default = _default_configuration(env)
    if os.path.isfile(default):
        return command_words.configuration_calls_torchrun(_content(default))
    return _count_devices(env) > 1 and (launch.processes is None or launch.processes > 1)


def _count_devices(env: Mapping[str, str]) -> int:
    """Of CUDA."""
    visible = env.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return len([name for name in visible.split(",") if name.strip()])
    requested = env.get(pod.ENV_DEVICES) or ""
    return int(requested[:6]) if requested.isdecimal() else 0


def _folders(texts: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The working directories of a command: the present one, "", and those to which its shell texts change."""
    found = [""]
    for path in (path for text in texts for path in _CHANGES_FOLDER.findall(text)):
        if len(found) < _MOST_SCRIPTS:
            found.append(os.path.join(found[-1], _expanded(path, env)))
    return found


def _shell_scripts(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The texts of the shell scripts that the command names, or that the text of a `bash -c` runs."""
    parts = [part for word in command[:_MOST_SCRIPTS] for part in (word, *_PROGRAM.findall(word[:_SCRIPT_BYTES]))]
    names = [_expanded(part, env) for part in list(dict.fromkeys(parts))[:_MOST_PARTS]]
    paths = dict.fromkeys(path for name in names for path in _paths(name, _folders(command, env)))
    texts = (_content(path) for path in paths if _is_shell_script(path))
    return [text for text, _ in zip(texts, range(_MOST_SCRIPTS))]


def _paths(name: str, folders: Sequence[str]) -> list[str]:
    """The files that the shell may run by this name."""
    if not name or "\0" in name:
        return []
    found = [path for path in (os.path.join(folder, name) for folder in folders) if os.path.isfile(path)]
    program = None if found else shutil.which(name)
    return found if program is None else [program]


def _is_shell_script(path: str) -> bool:
    """By its first line, or else by its name. A Python script may mention torchrun, for example in its docstring."""
    first = _first_line(path)
    if first.startswith("#!"):
        return _SHELL.search(first) is not None
    return os.path.splitext(path)[1] in _SHELL_SUFFIXES


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
    first = _first_line(path)
    if not first.startswith("#!"):
        return []
    interpreter, _, argument = first[2:].strip().partition(" ")
    found, _ = _without_env([interpreter, *([argument.strip()] if argument.strip() else [])])
    return [*found, path, *words[1:]] if found else []


def _first_line(path: str) -> str:
    """ "" if the file cannot be read."""
    try:
        with open(path, "rb") as file:
            return file.readline(_SHEBANG_BYTES).decode(errors="replace")
    except OSError:
        return ""


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
