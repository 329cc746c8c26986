"""The job of a torchrun that the container's command calls: from the start of the command to its end.

The launcher takes the place of that torchrun: its working directory, its limits, its streams and its log folder.
"""

import os
import signal
from collections.abc import Mapping
from typing import Callable, Optional

from understudy_launcher import environment, process_settings, torchrun_call
from understudy_launcher import events as e
from understudy_launcher.container_command import USAGE, Called, ContainerCommand
from understudy_launcher.torchrun_call import WorkerOutput
from understudy_protocol.torchrun import RunStock, RunWorkers

#: The exit code if the command cannot be started, as in a shell.
NOT_FOUND = 127
#: The exit code of a torchrun whose workers have failed.
FAILED = 1


class TorchrunJob:
    """call: the job, once torchrun has passed it. is_stock: torchrun runs its workers itself."""

    def __init__(self, command: ContainerCommand, socket: str, log: Callable[[str], None]) -> None:
        self.call: Optional[RunWorkers] = None
        self.is_stock = False
        self._command, self._socket, self._log = command, socket, log
        self._defaults: Mapping[str, str] = {}

    @property
    def pid(self) -> int:
        """Of the command."""
        return self._command.pid

    @property
    def code(self) -> Optional[int]:
        """The command's exit code, once it has ended."""
        return self._command.code

    def start(self, env: Mapping[str, str], sidecar: str) -> list[e.Event]:
        """sidecar: the path of its socket."""
        self._defaults = torchrun_call.torchrun_defaults(env, sidecar)
        why_not = self._command.start(environment.command_environment(env, self._defaults, self._socket))
        if why_not:
            return [e.ContainerCommandFailed(NOT_FOUND, why_not)]
        self._log("the command calls torchrun: it runs as it is, and the launcher runs the workers of its torchrun")
        return []

    def on_ready(self, fd: int, nproc: int) -> list[e.Event]:
        """A socket of the command's torchrun is readable. nproc: workers in the job's spec."""
        events: list[e.Event] = []
        for event in self._command.on_ready(fd):
            if not isinstance(event, Called):
                events.append(e.TorchrunEnded())
            elif isinstance(event.call, RunStock):
                self._log(f"torchrun runs its workers itself, as new processes: {event.call.reason}")
                self.is_stock = True
            else:
                events += self._accept(event.call, nproc)
        return events

    def ended(self, pid: int, status: int) -> list[e.Event]:
        """A child was reaped."""
        if pid != self._command.pid:
            return []
        self._command.ended(status)
        if self.call is not None:
            return [e.TorchrunEnded()]
        reason = f"the command ended with exit code {self.code}, and without a call of torchrun"
        advice = "" if self.code else ". If each worker is to run the command, set launcher.mode to Wrap"
        return [e.ContainerCommandFailed(self.code or USAGE, reason + advice)]

    def environment(self, own: Mapping[str, str]) -> dict[str, str]:
        """The launcher's environment for this job. own: before the call."""
        assert self.call is not None
        return torchrun_call.job_environment(self.call, own, self._defaults)

    def take_streams(self) -> None:
        self._command.take_streams()

    def command_of(self, local_rank: int) -> list[str]:
        assert self.call is not None
        return torchrun_call.command_of(self.call.command, local_rank)

    def output_of(self, attempt: int, local_rank: int, rank: int) -> WorkerOutput:
        """Also creates the folders. Raises OSError."""
        assert self.call is not None
        output = torchrun_call.output_of(self.call, attempt, local_rank, rank)
        paths = (output.stdout.path, output.stderr.path, output.error_file)
        for folder in {os.path.dirname(path) for path in paths if path not in ("", os.devnull)}:
            os.makedirs(folder, exist_ok=True)
        return output

    def end_torchrun(self, code: int) -> None:
        """The job has ended with this code: let torchrun exit."""
        self._command.end_torchrun(FAILED if code else 0)
        if self.call is None:
            self._command.signal(signal.SIGTERM)

    def ask_to_end(self) -> None:
        """SIGTERM to the torchrun that runs its workers itself, or to a command that continues after its torchrun."""
        if self.is_stock:
            self._command.signal_torchrun(signal.SIGTERM)
        else:
            self._command.signal(signal.SIGTERM)

    def kill(self) -> None:
        self._command.signal(signal.SIGKILL)

    def _accept(self, call: RunWorkers, nproc: int) -> list[e.Event]:
        why_not = torchrun_call.rejection(call, nproc)
        try:
            os.chdir(call.folder)
        except OSError as error:
            why_not = why_not or f"the launcher cannot enter torchrun's working directory: {error}"
        if why_not:
            return [e.ContainerCommandFailed(USAGE, why_not)]
        for error_text in process_settings.adopt(call.process):
            self._log(f"cannot give the workers a setting of torchrun's process: {error_text}")
        self.call = call
        return []
