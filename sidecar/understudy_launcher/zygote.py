"""The launcher's side of the zygote, a fork server (understudy_zygote/serve.py): starts it, sends orders, reads
answers.

Rules: the launcher waits at most FORKS_WITHIN_S for all forks of a round: on a machine that is so slow that a fork
takes seconds, the imports of a new process take minutes. A worker that is not forked, because the machine cannot fork
or because its command is longer than an order may be, starts as a fresh process. A zygote that does not answer is
killed, and its forks end with it.
"""

import array
import errno
import json
import select
import socket
import subprocess
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Callable, Optional, Union

from understudy_launcher import events as e
from understudy_launcher import prctl
from understudy_launcher.command_parser import PythonProgram, python_program
from understudy_launcher.log_process import INHERITED, Outputs
from understudy_launcher.process_table import Handle

FORKS_WITHIN_S = 15.0
PACKET_BYTES = 1 << 16
ORDER_BYTES = 1 << 18  # see PACKET_BYTES of serve.py


@dataclass(frozen=True)
class ForkRequest:
    """What a fork gets: files, and the variables that differ from the zygote's."""

    env: Mapping[str, str]
    step_files: tuple[int, int]  # bell and page
    outputs: Outputs = INHERITED
    dropped: Sequence[str] = ()  # variables of the zygote that the fork does not get
    command: Optional[Sequence[str]] = None  # a command that the zygote can fork; None: the zygote's
    snapshot_file: Optional[int] = None
    record: Optional[int] = None  # the file in which the worker records its imports


@dataclass(frozen=True)
class WorkerStatus:
    """A fork of the zygote has ended, and the zygote has reaped it."""

    pid: int
    status: int


ZygoteMessage = Union[
    e.ZygoteReady,
    e.ZygoteLost,
    e.StoreReady,
    e.StoreGone,
    e.StoreFailed,
    e.ZygoteChecked,
    e.ModulesLearned,
    e.ModuleRefused,
    e.LearningEnded,
    e.SecondZygoteLost,
    WorkerStatus,
]


@dataclass(frozen=True)
class _Store:
    port: int
    process: Handle


class ForkServerHandle:
    """`watch` and `unwatch` get the socket to select for reading."""

    def __init__(
        self,
        program: PythonProgram,
        command: Sequence[str],
        module: str,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
    ) -> None:
        """command: the command of a fresh process. module: the path of understudy_zygote/__main__.py."""
        self._program, self._command, self._module = program, list(command), module
        self._watch, self._unwatch = watch, unwatch
        self._started_for = program  # the program that this zygote runs by default
        self._control: Optional[socket.socket] = None
        self.pid = 0  # 0: none runs
        self.reads: tuple[str, ...] = ()  # variables that its imports have read
        self._process: Optional[Handle] = None
        self._stores: dict[int, _Store] = {}  # by pid
        self._early_messages: list[ZygoteMessage] = []  # received during fork()
        self._parent: Optional[int] = None  # the zygote that has forked this one
        self._is_learning = False  # forked by another zygote, and not ready yet
        self._before_exec = prctl.dies_with_parent()

    def start(self, env: Mapping[str, str], preload: Sequence[str]) -> list[ZygoteMessage]:
        """Replace the zygote. Return events only if it cannot be started."""
        self.end()
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        program = self._started_for = self._program
        words = [program.interpreter, *program.options, self._module, str(theirs.fileno())]
        try:
            process = subprocess.Popen(
                [*words, program.kind, program.target, *program.arguments],
                env={**env, **dict(program.env)},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
                preexec_fn=self._before_exec,  # safe: we have one thread
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:
            ours.close()
            return [e.ZygoteLost(f"cannot start {program.interpreter!r}: {error}", is_final=True)]
        finally:
            theirs.close()
        process.returncode = 0  # processes.reap() reaps it, not Popen
        self.pid, self._process = process.pid, Handle(process.pid)
        self._control = ours
        self._watch(ours.fileno())
        self._send({"preload": list(preload)})
        return []

    def start_learning(
        self,
        modules: Optional[Sequence[str]],
        left_out: Sequence[str],
        record: Optional[int],
        env: Mapping[str, str] = MappingProxyType({}),
        dropped: Sequence[str] = (),
    ) -> "ForkServerHandle":
        """Let this zygote fork another one, which also imports these modules, or those of a worker's record.

        env, dropped: how the variables of the workers differ from those of this zygote, except those of a round.
        """
        other = ForkServerHandle(self._program, self._command, self._module, self._watch, self._unwatch)
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files = {"control": theirs.fileno()}
        if modules is None and record is not None:
            files["imports"] = record
        order: dict[str, Any] = {"learn": list(modules or ()), "left_out": list(left_out), "files": list(files)}
        if env or dropped:
            order.update(env=dict(env), dropped=list(dropped))
        self._send(order, list(files.values()))
        theirs.close()
        other._control, other._is_learning, other._started_for = ours, True, self._started_for
        other._parent = self.pid
        self._watch(ours.fileno())
        return other

    def fork(self, workers: Mapping[int, ForkRequest]) -> dict[int, int]:
        """Return local rank -> pid of the workers that were forked. workers: by local rank."""
        pids: dict[int, int] = {}
        not_forked = 0
        for local_rank, fork in workers.items():
            bell, page = fork.step_files
            files = {"bell": bell, "page": page, "stdout": fork.outputs.stdout, "stderr": fork.outputs.stderr}
            if fork.snapshot_file is not None:
                files["snapshots"] = fork.snapshot_file
            if fork.record is not None:
                files["imports"] = fork.record
            given = {name: fd for name, fd in files.items() if fd >= 0}
            command, program = list(fork.command or self._command), self._program
            order = {"fork": local_rank, "env": dict(fork.env), "command": command, "files": list(given)}
            if fork.dropped:
                order["dropped"] = list(fork.dropped)
            if command != self._command:
                program = python_program(command) or program
            if program is not self._started_for:
                order["program"] = [program.kind, program.target, *program.arguments]
            not_forked += not self._send(order, list(given.values()))
        until = time.monotonic() + FORKS_WITHIN_S
        while self._control is not None and len(pids) + not_forked < len(workers):
            if not _is_readable(self._control, until - time.monotonic()):
                self.end()
                self._early_messages.append(
                    e.ZygoteLost(f"it did not fork within {FORKS_WITHIN_S:g} s", is_final=False)
                )
                return {}
            for answer in self._packets():
                if "forked" in answer:
                    pids[answer["forked"]] = answer["pid"]
                elif "not_forked" in answer:
                    not_forked += 1
                else:
                    self._early_messages += self._parse(answer)
        return pids

    def make_store(self, keep: Collection[int]) -> None:
        """End all stores except those that listen at `keep`, and create another one."""
        self.end_stores(keep)
        self._send({"store": True})

    def end_stores(self, keep: Collection[int]) -> None:
        for pid in [pid for pid, store in self._stores.items() if store.port not in keep]:
            process = self._stores.pop(pid).process
            process.kill()
            process.close()

    def run(self, program: PythonProgram, command: Sequence[str]) -> None:
        """Run this program from the next fork on, also in a new zygote. It needs the same interpreter."""
        self._program, self._command = program, list(command)

    def check(self, number: int) -> None:
        self._send({"check": number})

    def holds(self, port: int) -> bool:
        """Whether a store of this zygote listens at the port."""
        return any(store.port == port for store in self._stores.values())

    def receive(self) -> list[ZygoteMessage]:
        """The messages so far, without waiting."""
        messages, self._early_messages = self._early_messages, []
        if self._control is not None and _is_readable(self._control, 0.0):
            for answer in self._packets():
                messages += self._parse(answer)
        return messages + self._take_early_messages()

    def end(self) -> None:
        for store in self._stores.values():
            store.process.close()  # the store ends with the zygote
        self._stores.clear()
        self._hang_up()
        if self._process is not None:
            self._process.kill()
            self._process.close()
            self.pid, self._process = 0, None

    def _take_early_messages(self) -> list[ZygoteMessage]:
        early, self._early_messages = self._early_messages, []
        return early

    def _hang_up(self) -> None:
        if self._control is not None:
            self._unwatch(self._control.fileno())
            self._control.close()
            self._control = None

    def _parse(self, answer: dict[str, Any]) -> list[ZygoteMessage]:
        if "learns" in answer:
            self.pid, self._process = answer["learns"], Handle(answer["learns"], self._parent)
            return []
        if "learned" in answer:
            return [self._on_learned(answer)]
        if "ready" in answer:
            self.reads = tuple(answer["reads"])
            return [e.ZygoteReady(answer["ready"], answer["missing"], answer["cuda"])]
        if "unfit" in answer:
            self.end()
            return [e.ZygoteLost(answer["unfit"], is_final=True)]
        if "ended" in answer:
            store = self._stores.pop(answer["ended"], None)
            if store is None:
                return [WorkerStatus(answer["ended"], answer["status"])]
            store.process.close()
            return [e.StoreGone(store.port)]
        if "checked" in answer:
            return [e.ZygoteChecked(answer["checked"])]
        if "port" in answer:
            self._stores[answer["pid"]] = _Store(answer["port"], Handle(answer["pid"], self.pid))
            return [e.StoreReady(answer["port"])]
        return [e.StoreFailed(answer["why"])] if "why" in answer else []

    def _on_learned(self, answer: dict[str, Any]) -> Union[e.ModulesLearned, e.ModuleRefused]:
        if "refused" in answer:
            self.end()
            return e.ModuleRefused(answer["refused"], answer["why"], tuple(answer["learned"]))
        self._is_learning = False
        return e.ModulesLearned(tuple(answer["learned"]), answer["ready"])

    def _packets(self) -> list[dict[str, Any]]:
        """The packets that are readable now. If the socket has ended, the zygote has ended too."""
        assert self._control is not None
        packets: list[dict[str, Any]] = []
        while True:
            try:
                packet = self._control.recv(PACKET_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return packets
            except ConnectionError:
                packet = b""
            if not packet and packets:
                return packets  # the last packets come before the end, which the next call reads
            if not packet:
                self.end()
                ended = e.LearningEnded() if self._is_learning else e.ZygoteLost("it has ended", is_final=False)
                self._early_messages.append(ended)
                return packets
            packets.append(json.loads(packet))

    def _send(self, order: dict[str, Any], fds: Sequence[int] = ()) -> bool:
        """Whether the order is short enough. If the zygote has ended, the next read finds that."""
        if self._control is None:
            return True
        packet = json.dumps(order).encode()
        files = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
        try:
            if len(packet) <= ORDER_BYTES:
                self._control.sendmsg([packet], files)
        except OSError as error:
            return error.errno != errno.EMSGSIZE  # the limit of the system may be lower
        return len(packet) <= ORDER_BYTES


def _is_readable(control: socket.socket, within_s: float) -> bool:
    """Not by select(2), which rejects descriptors above 1023: a launcher of many workers has as many."""
    poll = select.poll()
    poll.register(control, select.POLLIN)
    return bool(poll.poll(max(0.0, within_s) * 1000))
