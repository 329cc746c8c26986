"""The fork server as the launcher sees it: a zygote, and perhaps a fork of it that has imported more modules.

Rules: once the second zygote is ready, it forks the workers and makes the stores. The first one stays, because its
workers and stores end with it, and because the second one is its child. If the second one is lost before it has forked
a worker, the first one forks the workers again, because the running workers are its forks. If the first one is lost, or
the second one after it has forked a worker, both end. The next start imports the learned modules at once, unless a
learned module has started a thread.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Callable, Optional

from understudy_launcher import events as e
from understudy_launcher.command_parser import PythonProgram
from understudy_launcher.zygote import ForkRequest, ForkServerHandle, WorkerStatus, ZygoteMessage


class ForkServer:
    """`watch` and `unwatch` get the sockets to select for reading."""

    def __init__(
        self,
        program: PythonProgram,
        command: Sequence[str],
        module: str,
        watch: Callable[[int], None],
        unwatch: Callable[[int], None],
    ) -> None:
        """See ForkServerHandle."""
        self._first = ForkServerHandle(program, command, module, watch, unwatch)
        self._learning: Optional[ForkServerHandle] = None  # imports the modules
        self._second: Optional[ForkServerHandle] = None  # has imported them
        self._is_second_used = False  # it has forked workers
        self._open_check: Optional[int] = None  # the number of a check that has no answer
        self._learned: tuple[str, ...] = ()

    @property
    def current(self) -> ForkServerHandle:
        """Forks the workers."""
        return self._second or self._first

    @property
    def pid(self) -> int:
        """The parent of the next workers."""
        return self.current.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(zygote.pid for zygote in (self._first, self._second) if zygote is not None)

    @property
    def reads(self) -> tuple[str, ...]:
        """Variables that its imports have read, beside those that torch and numpy read."""
        return self._first.reads

    def start(self, env: Mapping[str, str], preload: Sequence[str]) -> list[ZygoteMessage]:
        self.end()
        return self._first.start(env, [*preload, *self._learned])

    def learn(
        self,
        order: e.Learn,
        record: Optional[int],
        env: Mapping[str, str] = MappingProxyType({}),
        dropped: Sequence[str] = (),
    ) -> None:
        """env, dropped: see ForkServerHandle.start_learning()."""
        self._learning = self._first.start_learning(order.modules, order.left_out, record, env, dropped)

    def end_learning(self) -> None:
        if self._learning is not None:
            self._learning.end()
            self._learning = None

    def fork(self, workers: Mapping[int, ForkRequest]) -> dict[int, int]:
        pids = self.current.fork(workers)
        self._is_second_used = self._is_second_used or (self._second is not None and bool(pids))
        return pids

    def make_store(self, keep: Collection[int]) -> None:
        if self._second is not None:
            self._first.end_stores(keep)
        self.current.make_store(keep)

    def run(self, program: PythonProgram, command: Sequence[str]) -> None:
        for zygote in self._zygotes():
            zygote.run(program, command)

    def check(self, number: int) -> None:
        self._open_check = number
        self.current.check(number)

    def holds(self, port: int) -> bool:
        return any(zygote.holds(port) for zygote in self._zygotes())

    def receive(self) -> list[ZygoteMessage]:
        """The messages so far, without waiting."""
        messages = [(zygote, message) for zygote in self._zygotes() for message in zygote.receive()]
        return [
            self._seen(zygote, message)
            for zygote, message in messages
            if zygote in self._zygotes() or isinstance(message, WorkerStatus)
        ]

    def _seen(self, zygote: ForkServerHandle, message: ZygoteMessage) -> ZygoteMessage:
        if isinstance(message, e.ModulesLearned):
            if message.modules:
                self._second, self._learned = zygote, message.modules
            else:  # it has imported no more than the first one
                zygote.end()
            self._learning = None
        elif isinstance(message, (e.ModuleRefused, e.LearningEnded)):
            self._learning = None
        elif isinstance(message, e.ZygoteChecked):
            self._open_check = None
        elif isinstance(message, e.ZygoteLost) and zygote is self._second:
            return self._on_second_lost(message)
        elif isinstance(message, e.ZygoteLost):
            self.end()
        return message

    def _on_second_lost(self, message: e.ZygoteLost) -> ZygoteMessage:
        if message.is_final or not self._is_second_used:
            self._learned = ()  # final: a learned module has started a thread later
        if self._is_second_used:
            self.end()
            return replace(message, is_final=False)
        self._second = None
        if self._open_check is not None:
            self._first.check(self._open_check)
        return e.SecondZygoteLost(message.reason)

    def end(self) -> None:
        for zygote in self._zygotes():
            zygote.end()
        self._learning = self._second = None
        self._is_second_used, self._open_check = False, None

    def _zygotes(self) -> list[ForkServerHandle]:
        return [zygote for zygote in (self._first, self._learning, self._second) if zygote is not None]
