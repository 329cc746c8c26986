"""Facts about torchrun, and other programs that start ranks, in the words of a container's command. Pure.

Rules: a command that runs Python calls torchrun only if the Python program is torch's own: its arguments may contain
any word. Any other command, such as `bash -c` or numactl, calls torchrun if one of its words contains such a call.
`accelerate launch` calls torchrun with the options of several processes, or if its configuration file has them, or, if
there is no such file, on a machine with several devices. The file and the devices are in the pod, so only the launcher
knows them. Numbers have to be written as numbers: `gpu`, `auto` and variables have a value on the pod's node only.
"""

import itertools
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

_CALL = re.compile(r"(?:^|[\s/;&|(`\"'])torchrun(?:$|[\s;&|)`\"'])|torch\.distributed\.(?:run|launch)\b", re.MULTILINE)
_ACCELERATE_MODULE = "accelerate.commands.launch"
#: With its options, up to the end of the command.
_ACCELERATE = re.compile(
    rf"(?:^|[\s/;&|(`\"'])(?:accelerate\s+launch|{re.escape(_ACCELERATE_MODULE)})\b((?:\\\n|[^;&|\n])*)", re.MULTILINE
)
_ELASTIC_OPTION = re.compile(r"(?:^|\s)--(?:multi[-_]gpu|use[-_]fsdp|use[-_]deepspeed|use[-_]megatron[-_]lm)\b")
#: With these, accelerate reads no configuration, or does not call torchrun.
_NOT_ELASTIC_OPTION = re.compile(r"(?:^|\s)--(?:cpu|tpu)\b")
_CONFIG_FILE = re.compile(r"(?:^|\s)--config[-_]file(?:=|\s+)[\"']?([^\s\"']{1,4096})")
#: In a configuration file, YAML or JSON.
_ELASTIC_TYPE = re.compile(
    r"(?:^|[{,])[ \t]*[\"']?distributed_type[\"']?[ \t]*:[ \t]*[\"']?(?:MULTI_(?!CPU)\w+|FSDP|DEEPSPEED|MEGATRON_LM)\b",
    re.MULTILINE,
)
_PROCESSES, _MACHINES = (re.compile(rf"--num[-_]{name}(?:=|\s+)([0-9]{{1,5}})\b") for name in ("processes", "machines"))
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_MODULES = ("torch.distributed.run", "torch.distributed.launch")
_PYTHON = re.compile(r"python[0-9.]*")
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_WITH_VALUE = ("-W", "-X", "--check-hash-based-pycs")
_NPROC = re.compile(r"--nproc[-_]per[-_]node(?:=|\s+)(\S+)")
_MAX_RESTARTS = re.compile(r"--max[-_]restarts(?:=|\s+)([0-9]{1,7})(?![^\s;&|)\"'])")
#: Programs that start the processes of all ranks of a pod, without torch's elastic agent.
_OF_RANKS = "deepspeed|mpirun|mpiexec|horovodrun"
_RANKS_PROGRAM = re.compile(_OF_RANKS)
#: In a shell script, where a command begins: their names are also those of packages and folders.
_RANKS_CALL = re.compile(
    r"(?:^|[;&|(]|\bexec\s)[ \t]*(?:(?:[A-Za-z_][A-Za-z0-9_]{0,255}=[^\s;&|(]{0,1024}|env|nohup|time)[ \t]+){0,32}"
    rf"(?:[^\s;&|(]{{0,255}}/)?({_OF_RANKS})(?=\s)",
    re.MULTILINE,
)
_RANKS_MODULES = ("deepspeed.launcher.runner", "deepspeed.launcher.launch", "horovod.runner")
#: A Python program, a program that is written in Python, or a script that may call one.
_RUNS_PYTHON = re.compile(
    r"(?:^|[\s/;&|(`\"'])(?:i?python[0-9.]*|torchrun|accelerate|deepspeed|uv|conda|poetry)(?:$|[\s;&|)`\"'])"
    r"|\.(?:py|sh|bash)(?:$|[\s;&|)`\"'])",
    re.MULTILINE,
)
NPROC_VARIABLE = "PET_NPROC_PER_NODE"


@dataclass(frozen=True)
class AccelerateLaunch:
    """An `accelerate launch` without an option that decides whether it calls torchrun."""

    configuration: str  # the path of its configuration file; "": the default one
    processes: Optional[int] = None  # --num_processes


def calls_torchrun(words: Sequence[str]) -> bool:
    rest = _without_env(words)
    if rest and _PYTHON.fullmatch(os.path.basename(rest[0])):
        return _is_torchs_program(rest[1:])
    return text_calls_torchrun(" ".join(rest)) if _is_accelerate(rest) else any(map(text_calls_torchrun, rest))


def may_call_torchrun(words: Sequence[str]) -> bool:
    """Also if the call is in a file, such as a shell script, that the words name, or in accelerate's configuration."""
    rest = _without_env(words)
    is_python = bool(rest) and _PYTHON.fullmatch(os.path.basename(rest[0])) is not None
    return calls_torchrun(words) or not is_python or bool(accelerate_launches(words))


def accelerate_launches(words: Sequence[str]) -> list[AccelerateLaunch]:
    """Those whose options do not decide whether they call torchrun."""
    rest = _without_env(words)
    if rest and _PYTHON.fullmatch(os.path.basename(rest[0])):
        left = rest[rest.index("-m") + 1 :] if "-m" in rest else []
        return accelerate_launches_in(" ".join(left)) if left[:1] == [_ACCELERATE_MODULE] else []
    texts = [" ".join(rest)] if _is_accelerate(rest) else rest
    return [launch for text in texts for launch in accelerate_launches_in(text)]


def accelerate_launches_in(text: str) -> list[AccelerateLaunch]:
    """The same for a shell script, or a word of a command."""
    options = [call[1] for call in _ACCELERATE.finditer(_COMMENT.sub("", text))]
    undecided = [one for one in options if not _ELASTIC_OPTION.search(one) and not _NOT_ELASTIC_OPTION.search(one)]
    found = [(_CONFIG_FILE.search(one), _PROCESSES.search(one)) for one in undecided]
    return [
        AccelerateLaunch("" if path is None else path[1], None if processes is None else int(processes[1]))
        for path, processes in found
    ]


def configuration_calls_torchrun(text: str) -> bool:
    """text: of accelerate's configuration file."""
    return _ELASTIC_TYPE.search(text) is not None


def may_run_python(words: Sequence[str]) -> bool:
    """Whether the words name a Python program, or a script that may call one: then the image probably has Python."""
    return any(_RUNS_PYTHON.search(word) for word in words)


def text_calls_torchrun(text: str) -> bool:
    """text: a shell script, or a word of a command."""
    code = _COMMENT.sub("", text)
    return _CALL.search(code) is not None or _accelerates_torchrun(code)


def program_of_ranks(words: Sequence[str]) -> str:
    """The program that starts several ranks itself, and that is not torchrun; "" if there is none."""
    rest = _without_env(words)
    if not rest:
        return ""
    name = os.path.basename(rest[0])
    if _RANKS_PROGRAM.fullmatch(name):
        return name
    if _PYTHON.fullmatch(name):
        module = next((rest[n + 1] for n, word in enumerate(rest[:-1]) if word == "-m"), "")
        return module if module in _RANKS_MODULES else ""
    calls = (_RANKS_CALL.search(_COMMENT.sub("", word)) for word in rest[1:])
    return next((call[1] for call in calls if call is not None), "")


def nproc_text(words: Sequence[str]) -> str:
    """The value of torchrun's --nproc-per-node, or the processes of `accelerate launch` on each machine; "" if none."""
    text = " ".join(words)
    if (found := _NPROC.search(text)) is not None:
        return found[1].strip("\"'\\;")
    processes, machines = _PROCESSES.search(text), _MACHINES.search(text)
    if processes is None or not _accelerates_torchrun(text):
        return ""
    return str(int(processes[1]) // max(1, 1 if machines is None else int(machines[1])))


def max_restarts(words: Sequence[str]) -> Optional[int]:
    """torchrun's --max-restarts, if the words contain a number."""
    found = _MAX_RESTARTS.search(" ".join(words)) if calls_torchrun(words) else None
    return None if found is None else int(found[1])


def _accelerates_torchrun(text: str) -> bool:
    return any(_ELASTIC_OPTION.search(call[1]) for call in _ACCELERATE.finditer(text))


def _is_accelerate(words: Sequence[str]) -> bool:
    """Whether a word is the program itself: its options are the next words."""
    return any(os.path.basename(word) == "accelerate" for word in words[:-1])


def _without_env(words: Sequence[str]) -> list[str]:
    if words and os.path.basename(words[0]) == "env":
        return list(itertools.dropwhile(_ASSIGNMENT.fullmatch, words[1:]))
    return list(words)


def _is_torchs_program(arguments: Sequence[str]) -> bool:
    """arguments: of a Python."""
    words = iter(arguments)
    for word in words:
        if word == "-m":
            left = list(words)
            is_accelerate = left[:1] == [_ACCELERATE_MODULE] and any(map(_ELASTIC_OPTION.match, left))
            return is_accelerate or (bool(left) and left[0] in _MODULES)
        if word.startswith("-c"):
            return False
        if word.startswith("-m"):
            return word[2:] in _MODULES
        if word in _WITH_VALUE:
            next(words, None)
        elif not word.startswith("-"):
            return os.path.basename(word) == "torchrun"
    return False
