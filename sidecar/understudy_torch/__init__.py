"""What a training script may import from Understudy: `step()`. It needs no torch, and does nothing outside of a job."""

from understudy_torch.progress import step

__all__ = ["step"]
