"""The functions that a training script may import from Understudy. Needs no torch, and does nothing outside a job.

step(n, total)     reports the training's progress
snapshot           load() and save(): the training's state in memory that outlives the workers; imported only on demand
exit_on_fault()    for scripts without the launcher: on a faulty node SIGTERM ends them at once
"""

from typing import Optional

from understudy_torch.progress import show_stacks, step


def exit_on_fault(folder: Optional[str] = None) -> None:
    """See understudy_torch.sigterm. Imported only here, because most scripts run under the launcher."""
    from understudy_torch import sigterm

    sigterm.exit_on_fault(folder)


__all__ = ["exit_on_fault", "step"]

show_stacks()
