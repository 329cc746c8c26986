"""What a training script may import from Understudy. It needs no torch, and does nothing outside of a job.

step(n, total)     how far the training is
exit_on_fault()    for scripts without the launcher: SIGTERM on a faulty node ends them at once
"""

from typing import Optional

from understudy_torch.progress import show_stacks, step


def exit_on_fault(folder: Optional[str] = None) -> None:
    """See understudy_torch.sigterm, which is imported only now: most scripts have the launcher."""
    from understudy_torch import sigterm

    sigterm.exit_on_fault(folder)


__all__ = ["exit_on_fault", "step"]

show_stacks()
