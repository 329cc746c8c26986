"""`python launcher.pyz -- COMMAND…`: reads the pod's settings, runs the loop, and never leaves workers behind.

Exit codes of its own: 64 for a wrong command line, 78 for a wrong setting of the pod, 70 for a bug in the launcher.
"""

import json
import os
import re
import sys
import traceback
from collections.abc import Mapping, Sequence
from typing import Callable, Optional

from understudy_launcher import environment, prctl
from understudy_launcher.command_parser import calls_torchrun, python_program
from understudy_launcher.log_process import Logs
from understudy_launcher.loop import LauncherSettings, Loop
from understudy_launcher.phases import OnSigterm
from understudy_launcher.snapshot_storage import StorageSettings
from understudy_protocol import files, pod

USAGE, BROKEN, MISCONFIGURED = 64, 70, 78
#: Modules that every training with torch imports, some of them only in its first step.
DEFAULT_PRELOAD = "torch,torch.distributed,torch._dynamo,numpy"
DEFAULT_GRACE_S = "30"  # Kubernetes' own
#: The most bytes of the job's variables: they come from a Secret, and the API server accepts no larger one.
_VARIABLES_BYTES = 1 << 20


class SettingError(ValueError):
    """A variable of the pod has an invalid value. The text has the value and the expected form."""


def main(arguments: Sequence[str]) -> int:
    """Run a member's workers. Return the container's exit code."""
    command = list(arguments[1:]) if arguments[:1] == ["--"] else list(arguments)
    logs = Logs()
    if not command:
        logs.write_line("expected a command: launcher.pyz -- COMMAND [ARGUMENT]…")
        return USAGE
    try:
        settings = read_settings(command, read_environment(os.environ))
    except SettingError as error:
        logs.write_line(str(error))
        return MISCONFIGURED
    if settings.log_prefix and not settings.calls_torchrun:
        logs.start()
    loop = Loop(settings, logs)  # it handles signals from here on
    _introduce(settings, logs.write_line)
    code = _run(loop, logs.write_line)
    logs.finish()
    # Python's own shutdown is not needed, and on a faulty node it takes longer than the rest of the exit
    os._exit(code)


def read_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The pod's variables, and those of the job, which the sidecar writes before the trainer container starts. A pool's
    spare and an injected pod have no such file: all their variables are in the pod. Raises SettingError.
    """
    file = os.path.join(env.get(pod.ENV_SHARED_FOLDER) or pod.SHARED_FOLDER, pod.VARIABLES_FILE)
    try:
        of_job = json.loads(files.read_file(file, _VARIABLES_BYTES))
    except FileNotFoundError:
        return dict(env)
    except (OSError, ValueError, RecursionError) as error:
        raise SettingError(f"{file}: cannot be read: {error}") from None
    if not isinstance(of_job, dict) or not all(isinstance(value, str) for value in of_job.values()):
        raise SettingError(f"{file}: expected a JSON object with texts, which the sidecar writes")
    return {**env, **of_job}


def read_settings(command: Sequence[str], env: Mapping[str, str]) -> LauncherSettings:
    folder = env.get(pod.ENV_SHARED_FOLDER) or pod.SHARED_FOLDER
    nproc = int(_setting(env, pod.ENV_NPROC, "1", r"0*[1-9][0-9]{0,5}", "a number of workers, 1 or more"))
    grace_s = _seconds(env, pod.ENV_GRACE, DEFAULT_GRACE_S)
    socket = os.path.join(folder, pod.LAUNCHER_SOCKET)
    wanted = _setting(env, pod.ENV_ZYGOTE, "true", r"true|false", "true or false") == "true"
    auto = _setting(env, pod.ENV_MODE, "Wrap", r"Auto|Wrap", "Auto or Wrap") == "Auto"
    is_pools = pod.ENV_TEMPLATE_VARIABLES in env  # a job that claims the spare replaces its command
    calls = auto and not is_pools and calls_torchrun(command, env)
    program = python_program(command) if wanted and not calls else None
    listed = env.get(pod.ENV_PRELOAD, DEFAULT_PRELOAD)
    preload = tuple(name for name in (part.strip() for part in listed.split(",")) if name)
    on_sigterm = OnSigterm(_setting(env, pod.ENV_ON_SIGTERM, "Auto", r"Auto|Always|Never", "Auto, Always or Never"))
    log_prefix = _setting(env, pod.ENV_LOG_PREFIX, "true", r"true|false", "true or false") == "true"
    warmup = _warmup(env.get(pod.ENV_WARMUP) or "[]")
    timeout_s = _seconds(env, pod.ENV_STEP_TIMEOUT, "0")
    return LauncherSettings(
        command,
        nproc,
        grace_s,
        folder,
        socket,
        dict(env),
        program,
        preload,
        pod.ENV_PRELOAD not in env,
        on_sigterm,
        log_prefix,
        warmup,
        timeout_s,
        wanted,
        _seconds(env, pod.ENV_WORKER_GRACE_PERIOD, "0") if env.get(pod.ENV_WORKER_GRACE_PERIOD) else None,
        int(_setting(env, pod.ENV_DEVICES, "0", r"[0-9]{1,6}", "a number of devices")),
        int(_setting(env, pod.ENV_SNAPSHOT_BYTES, "0", r"[0-9]{1,15}", "a number of bytes")),
        int(_setting(env, pod.ENV_SNAPSHOT_EVERY, "1", r"[1-9][0-9]{0,5}", "a number of calls, 1 or more")),
        int(_setting(env, pod.ENV_SNAPSHOT_COPIES, "0", r"[0-9]", "a number of pods, 9 at most")),
        _snapshot_storage(env),
        auto,
        calls,
    )


def _snapshot_storage(env: Mapping[str, str]) -> Optional[StorageSettings]:
    path = _setting(env, pod.ENV_SNAPSHOT_STORAGE_PATH, "", r"|/.{0,1000}", "an absolute path in the container")
    every = _setting(env, pod.ENV_SNAPSHOT_STORAGE_EVERY, "1000", r"[1-9][0-9]{0,8}", "a number of steps, 1 or more")
    keep = _setting(env, pod.ENV_SNAPSHOT_STORAGE_KEEP, "2", r"[1-9][0-9]{0,3}", "a number of snapshots, 1 or more")
    return StorageSettings(path, int(every), int(keep)) if path else None


def _warmup(text: str) -> Sequence[str]:
    try:
        words = json.loads(text)
    except ValueError:
        words = None
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise SettingError(f"{pod.ENV_WARMUP}={text!r}: expected a JSON list of a command's words")
    return words


def _seconds(env: Mapping[str, str], name: str, default: str) -> float:
    return float(_setting(env, name, default, r"[0-9]{1,9}(\.[0-9]+)?", "a number of seconds"))


def _setting(env: Mapping[str, str], name: str, default: str, pattern: str, expected: str) -> str:
    text = env.get(name) or default
    if not re.fullmatch(pattern, text):
        raise SettingError(f"{name}={text!r}: expected {expected}")
    return text


def _introduce(settings: LauncherSettings, log: Callable[[str], None]) -> None:
    version = ".".join(str(part) for part in sys.version_info[:3])
    log(f"pid={os.getpid()} python={version} nproc={settings.nproc} grace_s={settings.grace_s:g}")
    if environment.single_threaded(settings.env, settings.nproc):
        log("OMP_NUM_THREADS=1 for each worker, as torchrun sets it; set it in the manifest to tune it")
    trouble = prctl.become_subreaper() if os.getpid() != 1 else None
    if trouble:
        log(f"cannot become a subreaper ({trouble}): the container's process 1 has to reap the orphans of workers")


def _run(loop: Loop, log: Callable[[str], None]) -> int:
    try:
        return loop.run()
    except BaseException:  # noqa: BLE001 - no worker may outlive the launcher
        log("a bug in the launcher; all workers are killed\n" + traceback.format_exc())
        loop.kill_all()
        return BROKEN


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
