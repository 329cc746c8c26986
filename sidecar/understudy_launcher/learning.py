"""Which modules the fork server imports beside its default ones: those that the first worker imports. Pure.

    state     event                                          next      effects
    --------  ---------------------------------------------  --------  ------------------------------------------
    OFF       -                                              OFF       the modules are set, or nothing is forked
    WAITING   workers are forked                             WATCHING  the first one records its imports
    WATCHING  it makes its first step, or runs for           LEARNING  Learn
              LEARN_AFTER_S without one
    WATCHING  it ends                                        WAITING
    WAITING   Preload: another pod has learned               LEARNING  Learn these modules, once the zygote is ready
    LEARNING  the modules are imported                       LEARNED   Learned is reported
    LEARNING  a module prevents forks                        LEARNING  Learn without it, at most MOST_REFUSED times;
                                                                       then only those before it
    LEARNING  that fork of the zygote has ended, or          OFF
              LEARN_WITHIN_S is over
    LEARNED   that fork of the zygote has ended before it    OFF       the zygote without the modules forks the next
              forked a worker                                          workers
    any       the zygote was lost                            -         LEARNED stays; else WAITING

The zygote that runs the workers is not changed: a fork of it imports the modules, and forks the workers of the next
rounds. So no round waits for the imports, and a module that starts threads does no harm.
"""

from enum import Enum
from typing import Optional

from understudy_launcher import events as e
from understudy_protocol.launcher import Learned

LEARN_AFTER_S = 60.0
LEARN_WITHIN_S = 180.0
MOST_REFUSED = 5


class LearningState(Enum):
    OFF = "off"
    WAITING = "waiting"
    WATCHING = "watching"
    LEARNING = "learning"
    LEARNED = "learned"


class Learning:
    def __init__(self, wanted: bool) -> None:
        self.state = LearningState.WAITING if wanted else LearningState.OFF
        self.modules: tuple[str, ...] = ()  # in LEARNED
        self._asked: Optional[tuple[str, ...]] = None  # None: those that the worker has recorded
        self._left_out: tuple[str, ...] = ()
        self._due: Optional[float] = None
        self._offered: Optional[tuple[str, ...]] = None  # by another pod

    def spawned(self, is_forked: bool, now: float) -> bool:
        """The workers of a round start. Return whether the first one is to record its imports."""
        if self.state in (LearningState.WAITING, LearningState.WATCHING):
            self.state, self._due = (
                (LearningState.WATCHING, now + LEARN_AFTER_S) if is_forked else (LearningState.WAITING, None)
            )
        return self.state is LearningState.WATCHING

    def stepped(self, local_rank: int, now: float) -> list[e.Effect]:
        return self._learn(None, now) if self.state is LearningState.WATCHING and local_rank == 0 else []

    def ended(self, local_rank: int) -> None:
        """A worker has ended before it was learned from: the next round's worker records again."""
        if self.state is LearningState.WATCHING and local_rank == 0:
            self.state, self._due = LearningState.WAITING, None

    def preload(self, modules: tuple[str, ...], is_ready: bool, now: float) -> list[e.Effect]:
        """is_ready: the zygote can fork."""
        self._offered = modules
        return self.on_ready(now) if is_ready else []

    def on_ready(self, now: float) -> list[e.Effect]:
        """The zygote can fork."""
        offered = self._offered if self.state is LearningState.WAITING else None
        return [] if offered is None else self._learn(offered, now)

    def lost_zygote(self) -> None:
        """The worker's record is lost with the zygote. The modules that were learned from the record are not lost."""
        if self.state in (LearningState.WATCHING, LearningState.LEARNING):
            self.state, self._due = LearningState.WAITING, None

    def on_learned(self, event: e.ModulesLearned) -> list[e.Effect]:
        if self.state is not LearningState.LEARNING:
            return []
        self.state, self._due, self.modules = LearningState.LEARNED, None, event.modules
        return [e.Log(_describe(event)), e.Report(Learned(event.modules))]

    def on_refused(self, event: e.ModuleRefused, now: float) -> list[e.Effect]:
        if self.state is not LearningState.LEARNING:
            return []
        self._left_out = (*self._left_out, event.module)
        refused = e.Log(f"the fork server does not import {event.module}: {event.reason}")
        return [refused, *self._learn(event.learned if len(self._left_out) >= MOST_REFUSED else self._asked, now)]

    def on_ended(self) -> list[e.Effect]:
        if self.state is not LearningState.LEARNING:
            return []
        self.state, self._due = LearningState.OFF, None
        return [e.Log("the process that imported the learned modules has ended: the fork server learns no modules")]

    def on_second_lost(self, event: e.SecondZygoteLost) -> list[e.Effect]:
        if self.state is not LearningState.LEARNED:
            return []
        self.state, self.modules = LearningState.OFF, ()
        return [
            e.Log(
                f"the fork server with the learned modules has ended before it forked a worker ({event.reason}): the "
                "fork server without these modules forks the next workers"
            )
        ]

    def on_time(self, now: float) -> list[e.Effect]:
        if self._due is None or now < self._due:
            return []
        if self.state is LearningState.WATCHING:
            return self._learn(None, now)
        return [e.EndLearning(), *self.on_ended()]

    def deadline(self) -> Optional[float]:
        return self._due

    def _learn(self, modules: Optional[tuple[str, ...]], now: float) -> list[e.Effect]:
        self.state, self._due, self._asked = LearningState.LEARNING, now + LEARN_WITHIN_S, modules
        return [e.Learn(modules, self._left_out)]


def _describe(event: e.ModulesLearned) -> str:
    if not event.modules:
        return "the fork server has learned no modules: the workers import none that it has not imported"
    return (
        f"the fork server has learned {len(event.modules)} modules in {event.seconds:.1f} s, and the next workers need "
        f"not import them: {','.join(event.modules)}"
    )
