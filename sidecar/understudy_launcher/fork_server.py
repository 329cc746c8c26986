"""The fork server as the launcher sees it: a zygote, and perhaps a fork of it that has imported more modules.

Rules: once the second zygote is ready, it forks the workers and makes the stores. The first one stays, because its
workers and stores end with it, and because the second one is its child. If one of the two is lost, both end, and the
next start imports the learned modules at once, unless one of them has started a thread.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Callable, Optional

from understudy_launcher import events as e
from understudy_launcher.command import PythonProgram
from understudy_launcher.zygote import ForkRequest, Zygote, ZygoteMessage


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
        """See Zygote."""
        self._first = Zygote(program, command, module, watch, unwatch)
        self._learning: Optional[Zygote] = None  # imports the modules
        self._second: Optional[Zygote] = None  # has imported them
        self._learned: tuple[str, ...] = ()

    @property
    def current(self) -> Zygote:
        """Forks the workers."""
        return self._second or self._first

    @property
    def pid(self) -> int:
        """The parent of the next workers."""
        return self.current.pid

    @property
    def pids(self) -> tuple[int, ...]:
        return tuple(zygote.pid for zygote in (self._first, self._second) if zygote is not None)

    def start(self, env: Mapping[str, str], preload: Sequence[str]) -> list[ZygoteMessage]:
        self.end()
        return self._first.start(env, [*preload, *self._learned])

    def learn(self, order: e.Learn, record: Optional[int]) -> None:
        self._learning = self._first.start_learning(order.modules, order.left_out, record)

    def end_learning(self) -> None:
        if self._learning is not None:
            self._learning.end()
            self._learning = None

    def fork(self, workers: Mapping[int, ForkRequest]) -> dict[int, int]:
        return self.current.fork(workers)

    def make_store(self, keep: Collection[int]) -> None:
        if self._second is not None:
            self._first.end_stores(keep)
        self.current.make_store(keep)

    def run(self, program: PythonProgram, command: Sequence[str]) -> None:
        for zygote in self._zygotes():
            zygote.run(program, command)

    def check(self, number: int) -> None:
        self.current.check(number)

    def holds(self, port: int) -> bool:
        return any(zygote.holds(port) for zygote in self._zygotes())

    def receive(self) -> list[ZygoteMessage]:
        """The messages so far, without waiting."""
        return [self._seen(zygote, message) for zygote in self._zygotes() for message in zygote.receive()]

    def _seen(self, zygote: Zygote, message: ZygoteMessage) -> ZygoteMessage:
        if isinstance(message, e.ModulesLearned):
            self._second, self._learning, self._learned = self._learning, None, message.modules
        elif isinstance(message, (e.ModuleRefused, e.LearningEnded)):
            self._learning = None
        elif isinstance(message, e.ZygoteLost):
            if message.is_final and zygote is self._second:  # a learned module started a thread later
                self._learned, message = (), replace(message, is_final=False)
            self.end()
        return message

    def end(self) -> None:
        for zygote in self._zygotes():
            zygote.end()
        self._learning = self._second = None

    def _zygotes(self) -> list[Zygote]:
        return [zygote for zygote in (self._first, self._learning, self._second) if zygote is not None]
