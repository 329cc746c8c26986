"""Reports the steps of a script that never calls step(): those of its torch optimizers.

Rules: torch is not imported here, because a script may set variables for its import. If the fork has not inherited it,
the import of torch.optim.optimizer by the script registers the hook. A script that calls step() itself turns this off:
then the page has calls that were not made here.

A step counts if its optimizer has made a step before, since the last step that counted; the first one of all counts
too. So if several optimizers take turns, only one counts. If it is not used any more, another one counts. Accumulated
gradients make one step, and an evaluation makes none.

The optimizer's own number of steps (Adam has one) continues after a checkpoint was loaded, so it is used if it is known
without waiting for a GPU. Otherwise the steps of this round are counted, and reported as such.

A compiled optimizer (torch.compile) does not count, because the hook must not interrupt its graph. An old torch, which
has no such hook, reports nothing.
"""

import contextlib
import importlib
import os
import sys
from typing import Any, Callable, Optional

from understudy_zygote.on_import import after_import

ENV_AUTOMATIC_STEPS = "UNDERSTUDY_AUTOMATIC_STEPS"
_OPTIMIZER = "torch.optim.optimizer"
_OURS = "understudy_torch"
#: A script that has imported understudy_torch probably calls step() itself: its first steps are not reported here.
FIRST_REPORTED_OF_OURS = 3


class OptimizerSteps:
    """progress: understudy_torch.progress. is_imported: the script has imported understudy_torch."""

    def __init__(self, progress: Any, *, is_imported: bool) -> None:
        self._progress = progress
        self._first_reported = FIRST_REPORTED_OF_OURS if is_imported else 1
        self._since: set[int] = set()  # the optimizers that have made a step since the last one that counted
        self._count = 0
        self._reported = 0
        self._before = 0  # steps that the optimizer had made before this round

    def on_step(self, optimizer: Any) -> bool:
        """Return whether to call this again."""
        if self._count and id(optimizer) not in self._since:
            self._since.add(id(optimizer))
            return True
        if not self._count:
            self._before = max(0, _steps_of(optimizer) - 1)
        self._count += 1
        self._since.clear()
        self._since.add(id(optimizer))
        if self._progress.calls() != self._reported:
            return False
        if self._count >= self._first_reported:
            self._progress.step(self._before + self._count, None if self._before else self._progress.COUNTED)
            self._reported += 1
        return True


def report_optimizer_steps() -> None:
    """Called in a fork before its script runs."""
    if os.environ.get(ENV_AUTOMATIC_STEPS) == "false":
        return
    after_import(_OPTIMIZER, _register)


def _register(optimizer_module: Any) -> None:
    optimizer_module.register_optimizer_step_post_hook(make_hook())


def make_hook() -> Callable[[Any, Any, Any], None]:
    """The hook is never removed: torch iterates over its hooks while it calls this one, so the step would fail."""
    steps: Optional[OptimizerSteps] = None
    is_over = False
    compiler: Any = getattr(sys.modules["torch"], "compiler", None)
    is_compiling: Callable[[], bool] = getattr(compiler, "is_compiling", lambda: False)

    def on_step(optimizer: Any, args: Any, kwargs: Any) -> None:
        nonlocal steps, is_over
        if is_compiling() or is_over:
            return
        try:
            if steps is None:
                is_imported = _OURS in sys.modules
                # only now: the user may have another module of that name
                progress = importlib.import_module(f"{_OURS}.progress")
                steps = OptimizerSteps(progress, is_imported=is_imported)
            is_over = not steps.on_step(optimizer)
        except Exception:  # noqa: BLE001 - the training must not fail for this
            is_over = True

    return on_step


def _steps_of(optimizer: Any) -> int:
    """How many steps the optimizer has made; 0 if unknown."""
    with contextlib.suppress(AttributeError, TypeError, ValueError):  # a state of another kind than torch's
        for state in optimizer.state.values():
            step = state.get("step", 0)
            on_device = getattr(getattr(step, "device", None), "type", "cpu") != "cpu"
            return 0 if on_device else int(step)
    return 0
