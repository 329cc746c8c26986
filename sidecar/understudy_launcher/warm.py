"""Whether workers are forked or start as fresh processes, and which store the next round may use. Pure.

    state    event                                      next     effects
    -------  -----------------------------------------  -------  -------------------------------------
    OFF      -                                          OFF      the command is no zygote's, or it was turned off
    CALLING  the command's torchrun passes its job      LOADING  a zygote is started; OFF if none can run the job
    READY    -                                          READY    with own_stores: no zygote is needed
    LOADING  the zygote can fork                        READY    its first store is created
    LOADING  it has ended, or LOAD_WITHIN_S is over     OFF      workers start as fresh processes
    READY    it has ended, for the first GIVE_UP times  LOADING  a new one is started
    READY    it has ended again, or finally             OFF
    any      a job's command needs another one          LOADING  a new one is started; OFF if it cannot be forked
    any      a job's command calls torchrun             CALLING  the command is started
    READY    the newest store has ended, or is in use   READY    another one is created
    READY    the second zygote has ended, unused        READY    the first one creates a store

If workers should be forked but start as fresh processes, fork_fallback_reason has the reason, and each change is
reported to the sidecar. A round waits while the command prepares its call of torchrun, without a limit, and while the
zygote loads: one import is faster than the imports of all workers of the pod at once. A store that a round uses is
offered to no later round; until the next store listens, rank 0 would serve its own.
"""

from enum import Enum
from typing import Optional, Union

from understudy_launcher import events as e

LOAD_WITHIN_S = 180.0
GIVE_UP = 3
#: The log says once that the command has not called torchrun for this time.
REMIND_AFTER_S = 60.0
OF_THE_ZYGOTE = (
    e.TorchrunCalled,
    e.ZygoteReady,
    e.ZygoteLost,
    e.ZygoteEnded,
    e.SecondZygoteLost,
    e.StoreReady,
    e.StoreGone,
    e.StoreFailed,
)
Event = Union[
    e.TorchrunCalled,
    e.ZygoteReady,
    e.ZygoteLost,
    e.ZygoteEnded,
    e.SecondZygoteLost,
    e.StoreReady,
    e.StoreGone,
    e.StoreFailed,
    e.Tick,
]

_REMINDER = (
    f"the command has not called torchrun for {REMIND_AFTER_S:g} s: this pod joins the job when it does. If each "
    "worker is to run the command, set launcher.mode to Wrap"
)


class ForkServerState(Enum):
    OFF = "off"
    CALLING = "calling"
    LOADING = "loading"
    READY = "ready"


class ForkServerWatch:
    """wanted: the command is a Python program that may be forked. own_stores: MakeStore needs no zygote.

    calls_torchrun: the workers are those of a torchrun that the command calls. fork_fallback_reason: with own_stores,
    why that torchrun runs its workers itself.
    """

    def __init__(
        self, wanted: bool, *, own_stores: bool = False, calls_torchrun: bool = False, fork_fallback_reason: str = ""
    ) -> None:
        self.state = ForkServerState.READY if own_stores else ForkServerState.OFF
        self.fork_fallback_reason = fork_fallback_reason  # "": workers are forked, or need not be
        self.store_port = 0  # a store that no round has used; 0: none listens
        self._is_wanted, self._calls_torchrun = wanted, calls_torchrun
        self._load_by: Optional[float] = None
        self._remind_at: Optional[float] = None
        self._losses = 0

    @property
    def has_given_up(self) -> bool:
        """Whether workers that should be forked start as fresh processes."""
        return self._is_wanted and self.state is ForkServerState.OFF

    @property
    def is_loading(self) -> bool:
        """Whether a round has to wait."""
        return self.state in (ForkServerState.CALLING, ForkServerState.LOADING)

    @property
    def forks(self) -> bool:
        """Whether the next workers are forks."""
        return self._is_wanted and self.state is ForkServerState.READY and not self.fork_fallback_reason

    def start(self, now: float) -> list[e.Effect]:
        """Called when the launcher starts."""
        if self.state is ForkServerState.READY:
            return [e.MakeStore()]
        if self._calls_torchrun:
            self.state, self._remind_at = ForkServerState.CALLING, now + REMIND_AFTER_S
            return [e.StartCommand()]
        if not self._is_wanted:
            return []
        self.state, self._load_by = ForkServerState.LOADING, now + LOAD_WITHIN_S
        return [e.StartZygote()]

    def handle(self, event: Event, in_use: tuple[int, ...], now: float) -> list[e.Effect]:
        """in_use: see next_store."""
        if isinstance(event, e.ZygoteReady):
            self.state, self._load_by = ForkServerState.READY, None
            missing = "".join(f"; module {name} is not preloaded ({why})" for name, why in event.missing.items())
            ready = e.Log(f"the fork server is ready after {event.seconds:.1f} s{missing}")
            self.fork_fallback_reason = _after_cuda(event.cuda) if event.cuda else ""
            return [ready, *([e.Log(self.fork_fallback_reason)] if event.cuda else []), e.MakeStore(in_use)]
        if isinstance(event, e.ZygoteLost):
            return self._on_gone(event, now)
        if isinstance(event, e.ZygoteEnded):
            self.store_port, self._load_by, self.state, self._is_wanted = 0, None, ForkServerState.OFF, event.was_wanted
            self.fork_fallback_reason, self._calls_torchrun = "", event.calls_torchrun
            return self.start(now)
        if isinstance(event, e.TorchrunCalled):
            self.state, self._is_wanted, self._calls_torchrun = ForkServerState.OFF, event.may_fork, False
            self._remind_at = None
            return self.start(now)
        if isinstance(event, e.StoreReady):
            self.store_port = event.port
        elif isinstance(event, e.StoreFailed):
            return [e.Log(f"the fork server could not create the round's store ({event.reason}): rank 0 creates it")]
        elif isinstance(event, e.StoreGone):
            return self.next_store(in_use) if event.port == self.store_port else []
        elif isinstance(event, e.SecondZygoteLost):  # the newest store was perhaps that zygote's
            return self.next_store(in_use, perhaps_named=True)
        elif self._remind_at is not None and now >= self._remind_at:
            self._remind_at = None
            return [e.Log(_REMINDER)]
        elif self._load_by is not None and now >= self._load_by:
            self.state, self._load_by = ForkServerState.OFF, None
            return [e.EndZygote(), self._give_up(f"it was not ready within {LOAD_WITHIN_S:g} s")]
        return []

    def next_store(self, in_use: tuple[int, ...], *, perhaps_named: bool = False) -> list[e.Effect]:
        """Offer another store. in_use: the port of the running round's store, if it has one.

        perhaps_named: a StartWorkers that is on its way may name the offered store, so keep it.
        """
        keep = (*in_use, self.store_port) if perhaps_named else in_use
        self.store_port = 0
        return [e.MakeStore(keep)] if self.state is ForkServerState.READY else []

    def deadline(self) -> Optional[float]:
        return self._load_by if self._remind_at is None else self._remind_at

    def _on_gone(self, event: e.ZygoteLost, now: float) -> list[e.Effect]:
        again = self.state is ForkServerState.READY and not event.is_final and self._losses < GIVE_UP
        self._losses += 1
        self.store_port, self._load_by, self.state = 0, None, ForkServerState.OFF
        if again:
            return [e.Log(f"the fork server ended ({event.reason}): the launcher restarts it"), *self.start(now)]
        return [self._give_up(event.reason)]

    def _give_up(self, why: str) -> e.Log:
        self.fork_fallback_reason = (
            f"the fork server is off ({why}): workers start as new processes and import all modules"
        )
        return e.Log(self.fork_fallback_reason)


def _after_cuda(module: str) -> str:
    return (
        f"the import of {module} initialized CUDA, which does not work in forked processes: workers start as new "
        "processes. Remove the module from launcher.preload, or let it initialize CUDA after its import"
    )
