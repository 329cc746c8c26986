"""A torchrun that the command of a pod calls in mode Auto passes its job to the pod's launcher, and waits.

torch's own parser has read the command line, whatever its form: `torchrun`, `python -m torch.distributed.run`, or a
program that calls torch.distributed.run. Here LaunchConfig, which is its result, becomes a message.

Rules: an option is honored, is irrelevant because the job decides, or has to have its default. With any other value,
also of an option that a later torch adds, torchrun runs its workers itself, and the reason names the option.
"""

import dataclasses
import os
import socket
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, Union

from understudy_launcher import process_settings
from understudy_protocol import pod, wire
from understudy_protocol.torchrun import LINE_BYTES, EndTorchrun, Proceed, RunStock, RunWorkers, WorkerFiles

BROKEN = 70
#: Fields of LaunchConfig that are in the message.
_HONORED = ("nproc_per_node", "logs_specs", "run_id", "role", "max_restarts", "log_line_prefix_template")
#: Fields that the job decides, or that concern the agent alone.
_IRRELEVANT = (
    "min_nodes",
    "max_nodes",
    "rdzv_endpoint",
    "rdzv_backend",
    "rdzv_configs",
    "rdzv_timeout",
    "monitor_interval",
    "start_method",  # of functions
    "metrics_cfg",
    "local_addr",
    "shutdown_timeout",
)
#: Options that are not named like their field.
_OPTIONS = {"numa_options": "--numa-binding"}
#: Variables that start a server for each torchrun.
_OF_THE_AGENT = ("TORCHELASTIC_ENABLE_FILE_TIMER", "TORCHELASTIC_HEALTH_CHECK_PORT")
_NO_REDIRECT = ("", os.devnull)
_ANSWERS = {cls.__name__: cls for cls in (Proceed, EndTorchrun)}
#: More restarts than any budget permits: the job decides.
_RESTARTS = 1_000_000


def hand_over(config: Any, entrypoint: Any, arguments: Sequence[Any]) -> None:
    """Return only if this torchrun is to run its workers itself, with Understudy's rendezvous."""
    path = os.environ[pod.ENV_TORCHRUN_SOCKET]
    try:
        with socket.socket(socket.AF_UNIX) as launcher:
            launcher.connect(path)
            reason = stock_reason(config, entrypoint, os.environ) or _user_reason(launcher)
            message = RunStock(reason) if reason else _call(config, entrypoint, arguments)
            _send(launcher, message)
            answer = _receive(launcher)
            if isinstance(answer, EndTorchrun):
                _exit(answer.code, answer.message)
            if isinstance(message, RunWorkers):
                _become_wait(launcher)
    except (OSError, wire.WireError, ValueError) as error:
        _exit(BROKEN, f"understudy torchrun: cannot pass the job to the launcher at {path}: {error}")
    config.max_restarts = _RESTARTS
    os.environ[pod.ENV_FORK_FALLBACK] = reason
    os.environ[pod.ENV_TORCHRUN] = "1"


def stock_reason(config: Any, entrypoint: Any, env: Mapping[str, str]) -> str:
    """Why the launcher cannot run this job as torchrun would; "" if it can."""
    if not isinstance(entrypoint, str):
        return "--run-path, or a function in place of a script, has no command that a fork could run"
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs

    if type(config.logs_specs) is not DefaultLogsSpecs:
        return f"--logs-specs {type(config.logs_specs).__name__} writes the logs of workers"
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if field.name in (*_HONORED, *_IRRELEVANT) or value == field.default or (not value and not field.default):
            continue
        return (
            f"{_OPTIONS.get(field.name, '--' + field.name.replace('_', '-'))} has no effect on forked workers: {value}"
        )
    for name in _OF_THE_AGENT:
        if env.get(name):
            return f"the variable {name} makes torchrun watch its workers"
    for name, text in env.items():
        if not _is_utf8(name) or not _is_utf8(text):
            return f"the variable {name.encode(errors='replace').decode()} is not UTF-8"
    return ""


def _user_reason(launcher: socket.socket) -> str:
    credentials = launcher.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    _, uid, gid = struct.unpack("3i", credentials)
    if (uid, gid) == (os.getuid(), os.getgid()):
        return ""
    return f"torchrun runs as user {os.getuid()}:{os.getgid()}, and the launcher as {uid}:{gid}"


def _call(config: Any, entrypoint: str, arguments: Sequence[Any]) -> RunWorkers:
    run_id = _run_id(config)
    files, attempt_folder = _files(config, run_id)
    env = {
        **os.environ,
        "ROLE_NAME": config.role,
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_MAX_RESTARTS": str(config.max_restarts),
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
    }
    if hasattr(config, "signals_to_handle"):  # not in torch 2.6
        env["TORCHELASTIC_SIGNALS_TO_HANDLE"] = config.signals_to_handle
    template = config.log_line_prefix_template or "[${role_name}${local_rank}]:"
    return RunWorkers(
        command=(entrypoint, *map(str, arguments)),
        nproc=config.nproc_per_node,
        env=env,
        folder=os.getcwd(),
        process=process_settings.read(),
        files=files,
        attempt_folder=attempt_folder,
        line_prefix=template.replace("${role_name}", config.role),
    )


def _run_id(config: Any) -> str:
    """With --standalone torchrun generates one, so each pod would have a different one."""
    is_generated = config.rdzv_backend == "c10d" and config.rdzv_endpoint == "localhost:0"
    return os.environ.get("PET_RDZV_ID", "") if is_generated else str(config.run_id)


def _files(config: Any, run_id: str) -> "tuple[tuple[WorkerFiles, ...], str]":
    """The files of each worker in the first attempt, and their folder, as torch defines them."""
    values = {"TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": "0"}
    found = config.logs_specs.reify({rank: dict(values) for rank in range(config.nproc_per_node)})
    files = tuple(
        WorkerFiles(
            stdout=found.stdouts[rank],
            stderr=found.stderrs[rank],
            tees_stdout=found.tee_stdouts.get(rank, "") not in _NO_REDIRECT,
            tees_stderr=found.tee_stderrs.get(rank, "") not in _NO_REDIRECT,
            error_file=found.error_files[rank] if found.error_files[rank] != os.devnull else "",
        )
        for rank in range(config.nproc_per_node)
    )
    return files, os.path.dirname(os.path.dirname(files[0].error_file)) if files else ""


def _send(launcher: socket.socket, message: Union[RunStock, RunWorkers]) -> None:
    """Raises ValueError if the message is too long."""
    line = f"{wire.encode(message)}\n".encode()
    if len(line) > LINE_BYTES:
        raise ValueError(f"its environment and arguments have {len(line)} bytes; at most {LINE_BYTES} are sent")
    sys.stdout.flush()
    sys.stderr.flush()
    sent = socket.send_fds(launcher, [line], [1, 2])
    launcher.sendall(line[sent:])


def _receive(launcher: socket.socket) -> Any:
    text = b""
    while not text.endswith(b"\n"):
        chunk = launcher.recv(1)  # the next line is for wait.py
        if not chunk:
            raise wire.WireError("the launcher has closed the connection")
        text += chunk
    return wire.decode(text, _ANSWERS)


def _become_wait(launcher: socket.socket) -> NoReturn:
    os.set_inheritable(launcher.fileno(), True)
    program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "wait.py")
    os.execv(sys.executable, [sys.executable, "-I", "-S", program, str(launcher.fileno())])  # noqa: S606


def _exit(code: int, message: str) -> NoReturn:
    if message:
        sys.stderr.write(f"{message}\n")
    raise SystemExit(code)


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
