"""The zygote: imports the workers' modules, then forks a worker for each order. Computes nothing, has one thread.

Orders and answers are JSON objects, each in its own packet on the control socket (SOCK_SEQPACKET):

    {"preload": ["torch", …]}                          the first one
        {"ready": SECONDS, "missing": {MODULE: WHY},   it can fork
         "cuda": MODULE,                               the module that initialized CUDA, so that forks exec; or ""
         "reads": [NAME, …]}                           variables that imports have read; not those of torch and numpy
        {"unfit": WHY}                                 it cannot: it ends
    {"fork": LOCAL_RANK, "env": {NAME: VALUE}, "command": […], "files": […]}
                                                       files: the names of the attached files (SCM_RIGHTS), in this
                                                       order: "bell", "page" (its step files), "stdout", "stderr",
                                                       "snapshots" (the memory for them), "imports" (its record,
                                                       see import_record.py);
                                                       if the zygote was started for another program, also "dropped":
                                                       [NAME, …] and "program": [KIND, TARGET, ARGUMENT, …]
        {"forked": LOCAL_RANK, "pid": PID}                 or, if the machine cannot fork,
        {"not_forked": LOCAL_RANK}
    {"store": true}                                    serve a store for a later round
        {"pid": PID, "port": PORT}                     sent by the store itself; or
        {"pid": PID, "why": WHY}                       it cannot
    {"learn": [MODULE, …], "left_out": [MODULE, …], "files": […]}
                                                       fork another zygote that also imports the modules, or those of
                                                       the attached record; files: "control", its socket, and
                                                       "imports"; if the workers of a job that has claimed this spare
                                                       have other variables, also "env": {…} and "dropped": [NAME, …]
        {"learns": PID}                                these answers come from that zygote, on its socket
        {"ready": SECONDS, "learned": [MODULE, …]}
        {"refused": MODULE, "why": WHY, "learned": […]}
                                                       it ends, because a process with this module cannot be forked
    {"check": NUMBER}                                  fork a process that does nothing
        {"checked": NUMBER}                            sent by that process
    {"ended": PID, "status": STATUS}                   unrequested, as from os.waitpid

Rules: a fork hangs if it needs a lock that another thread had, so a process with a second thread is not forked
(fitness.py). When the launcher has ended the zygote ends, and the kernel ends its forks with it.
If a fork fails, because the container has too many processes or too little memory, the running forks continue.
"""

import array
import contextlib
import gc
import importlib
import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any, Optional

from understudy_zygote import (
    build_locks,
    child,
    early_variables,
    import_record,
    jax_cache,
    jax_cluster,
    learning,
    optimizer_steps,
    script,
    store_fork,
)
from understudy_zygote.fitness import ForkSafety
from understudy_zygote.script import Program

PACKET_BYTES = 1 << 18
FILES = 6  # at most, with one order
_KNOWN = ("torch", "numpy")


def main(arguments: Sequence[str]) -> Optional[Program]:
    """Serve until the launcher ends, then return None. In a fork, return the program to run."""
    fd, kind, target, *rest = arguments
    child.name_process("zygote")
    control = socket.socket(fileno=int(fd))
    order = _receive(control)[0]
    if order is None:
        return None
    start = time.monotonic()
    fitness = ForkSafety()
    reads: set[str] = set()
    missing = _import_all(order["preload"], fitness, reads)
    unfit = fitness.unsafe_reason()
    if unfit:
        _send(control, {"unfit": unfit})
        return None
    ready = {"ready": time.monotonic() - start, "missing": missing, "cuda": fitness.cuda_importer}
    _send(control, {**ready, "reads": _short_list(reads)})
    return Zygote(control, Program(kind, target, tuple(rest)), fitness).serve()


class Zygote:
    def __init__(self, control: socket.socket, program: Program, fitness: ForkSafety) -> None:
        self._control, self._program, self._fitness = control, program, fitness
        self._round_variables: set[str] = set()  # those that the last worker got from its round
        self._wakeup, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def serve(self) -> Optional[Program]:
        waiting = select.poll()
        for fd in (self._control.fileno(), self._wakeup):
            waiting.register(fd, select.POLLIN)
        while True:
            ready = [fd for fd, _ in waiting.poll()]
            if self._wakeup in ready:
                os.read(self._wakeup, 4096)
                self._reap()
            if self._control.fileno() in ready:
                order, fds = _receive(self._control)
                if order is None:
                    return None
                program = self._obey(order, fds)
                if program is not None:
                    return program

    def _obey(self, order: dict[str, Any], fds: list[int]) -> Optional[Program]:
        """In a fork, return the program to run."""
        parent = os.getpid()
        try:
            unfit = self._fitness.unsafe_reason()
            if unfit:
                _send(self._control, {"unfit": unfit})
                sys.exit(0)
            pid = self._fork()
        except OSError as error:
            pid = -1
            self._on_failed_fork(order, error)
        if pid == 0:
            self._begin_fork(parent)
            return self._in_fork(order, fds)
        for fd in fds:
            os.close(fd)
        if "fork" in order and pid > 0:
            self._round_variables = {*order["env"], *order.get("dropped", ())}
            _send(self._control, {"forked": order["fork"], "pid": pid})
        return None

    def _fork(self) -> int:
        sys.stdout.flush()
        sys.stderr.flush()
        gc.freeze()  # else the first collection in each fork copies the pages of all imported objects
        return os.fork()

    def _begin_fork(self, parent: int) -> None:
        child.begin(parent)
        os.close(self._wakeup)
        os.close(self._woken)

    def _on_failed_fork(self, order: dict[str, Any], error: OSError) -> None:
        """A check gets no answer. The launcher sees that the socket of a zygote that is to learn is closed."""
        sys.stderr.write(f"understudy: the fork server cannot fork: {error}\n")
        sys.stderr.flush()
        if "fork" in order:
            _send(self._control, {"not_forked": order["fork"]})
        elif "store" in order:
            _send(self._control, {"pid": 0, "why": str(error)})

    def _in_fork(self, order: dict[str, Any], fds: list[int]) -> Optional[Program]:
        if "store" in order:
            store_fork.serve(self._control)
        if "check" in order:
            _send(self._control, {"checked": order["check"]})
            os._exit(0)
        self._control.close()
        if "learn" in order:
            return self._learn(order, dict(zip(order["files"], fds)))
        child.name_process(_python())
        program = self._program
        if "program" in order:
            kind, target, *arguments = order["program"]
            program = Program(kind, target, tuple(arguments))
        for name in order.get("dropped", ()):
            os.environ.pop(name, None)
        child.become_worker(order["env"], dict(zip(order["files"], fds)), order["command"])
        script.prepare(program, len(self._program.arguments))
        why_fresh = early_variables.fresh_start_reason(program)
        if why_fresh:
            sys.stderr.write(f"understudy: {why_fresh}\n")
            sys.stderr.flush()
            child.start_afresh(order["command"])
        child.show_stacks()
        optimizer_steps.report_optimizer_steps()
        build_locks.watch_build_locks()
        jax_cluster.join_jax_to_round()
        jax_cache.write_in_each_process()
        return program

    def _learn(self, order: dict[str, Any], files: dict[str, int]) -> Program:
        """Become a zygote that has imported more. In its forks, return the program to run; else never return."""
        control, start = socket.socket(fileno=files["control"]), time.monotonic()
        _send(control, {"learns": os.getpid()})
        of_job = {*order.get("env", ()), *order.get("dropped", ())}
        os.environ.update(order.get("env", {}))
        for name in order.get("dropped", ()):
            os.environ.pop(name, None)
        recorded = learning.named(order["learn"])
        if "imports" in files:
            recorded = import_record.read(files["imports"])
        with _silence():  # the worker has shown the same
            learned = learning.import_learned(
                recorded, self._program, self._fitness, self._round_variables - of_job, order["left_out"]
            )
        if learned.refused:
            _send(control, {"refused": learned.refused, "why": learned.reason, "learned": learned.modules})
            os._exit(0)
        _send(control, {"ready": time.monotonic() - start, "learned": learned.modules})
        program = Zygote(control, self._program, self._fitness).serve()
        if program is None:
            os._exit(0)
        return program

    def _reap(self) -> None:
        """Report the ended workers, those killed by SIGKILL first: others may have ended because of them, and the
        kernel returns children in the order of their creation.
        """
        ended = []
        with contextlib.suppress(ChildProcessError):  # there are no children
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                ended.append((pid, status))
        for pid, status in sorted(ended, key=lambda entry: os.waitstatus_to_exitcode(entry[1]) != -signal.SIGKILL):
            _send(self._control, {"ended": pid, "status": status})


def _python() -> str:
    """The kernel's name for a process that was started like this one."""
    return os.path.basename(sys.executable)[:15]


def _import_all(names: Sequence[str], fitness: ForkSafety, reads: set[str]) -> dict[str, str]:
    """Return the modules that cannot be imported, and why. Output and side effects of a module are the user's.

    reads: gets the variables that the imports read. The launcher knows those of torch and numpy.
    """
    missing = {}
    for name in names:
        try:
            with learning.noted_reads(set() if name.partition(".")[0] in _KNOWN else reads):
                importlib.import_module(name)
        except Exception as error:  # noqa: BLE001 - a module may raise anything
            missing[name] = f"{type(error).__name__}: {error}"
        fitness.imported(name)
    return missing


def _short_list(names: set[str]) -> list[str]:
    """As many names as fit into a packet."""
    found = sorted(filter(str.isascii, names))
    return [name for name, so_far in zip(found, accumulate(map(len, found))) if so_far <= learning.MOST_CHARACTERS]


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """Drop what is written to stdout and stderr."""
    sys.stdout.flush()
    sys.stderr.flush()
    saved = [os.dup(1), os.dup(2)]
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for number in (1, 2):
        os.dup2(nowhere, number)
    os.close(nowhere)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, original in zip((1, 2), saved):
            os.dup2(original, number)
            os.close(original)


def _receive(control: socket.socket) -> tuple[Optional[dict[str, Any]], list[int]]:
    """An order and the files that came with it; None if the launcher has closed the socket."""
    numbers = array.array("i")
    try:
        packet, ancillary, _, _ = control.recvmsg(PACKET_BYTES, socket.CMSG_LEN(FILES * numbers.itemsize))
    except ConnectionError:
        packet, ancillary = b"", []
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            numbers.frombytes(data)
    return (json.loads(packet) if packet else None), numbers.tolist()


def _send(control: socket.socket, answer: dict[str, Any]) -> None:
    try:
        control.send(json.dumps(answer).encode())
    except OSError:
        sys.exit(0)  # the launcher has ended
