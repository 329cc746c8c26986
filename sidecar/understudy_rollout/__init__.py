"""Weight updates in RL that never leave rollouts broken: a transaction over a trainer and its inference servers.

    replicas = [Replica("rollout-0", SglangEngine("http://rollout-0:30000")), …]
    async with WeightUpdate(replicas, trainer, version="step-7") as update:
        await update.transfer(bucket)

See docs/how-to/rl.md. It runs in the trainer's image: Python ≥ 3.9; only the adapters need aiohttp.
"""

from understudy_rollout.blocking import BlockingWeightUpdate, in_thread
from understudy_rollout.engine import Admission, Engine, Replica, Tensor, Trainer
from understudy_rollout.failures import UpdateFailed
from understudy_rollout.update import Timeouts, WeightUpdate
from understudy_rollout.update_reports import JobLink
from understudy_rollout.weights import Fence, Group, PreviousState, WeightsState

__all__ = [
    "Admission",
    "BlockingWeightUpdate",
    "Engine",
    "Fence",
    "Group",
    "JobLink",
    "PreviousState",
    "Replica",
    "Tensor",
    "Timeouts",
    "Trainer",
    "UpdateFailed",
    "WeightUpdate",
    "WeightsState",
    "in_thread",
]
