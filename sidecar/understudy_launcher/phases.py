"""The supervisor's states, and what the sidecar hears of them. The transitions are in `supervise`."""

from enum import Enum

from understudy_protocol.enums import WorkersState


class Phase(Enum):
    """The states of the supervisor's transition table."""

    IDLE = "idle"  # no workers
    REPLACING = "replacing"  # a round waits, and the workers of the old one have the worker grace
    STARTING = "starting"  # a round waits until nothing is left of the old one
    RUNNING = "running"
    FAILED = "failed"  # a worker failed; its neighbours may still run
    FINISHED = "finished"  # all workers exited 0
    DRAINING = "draining"  # the workers got SIGTERM, and the launcher stays
    STOPPING = "stopping"  # the workers are killed, and nothing follows
    SAVING = "saving"  # the pod ends, and the workers got SIGTERM
    CLOSING = "closing"  # the job is closed, and the workers got SIGTERM
    LEAVING = "leaving"  # the launcher exits when nothing is left


class OnSigterm(Enum):
    """Whether workers may save when the pod is asked to end."""

    AUTO = "Auto"  # unless the node is faulty: a save on dying hardware hangs, or breaks what it writes
    ALWAYS = "Always"
    NEVER = "Never"


#: In the phases that are not here old workers may still run, or have failed.
REPORTED_STATE = {
    Phase.IDLE: WorkersState.IDLE,
    Phase.REPLACING: WorkersState.STARTING,
    Phase.STARTING: WorkersState.STARTING,
    Phase.FAILED: WorkersState.FAILED,
    Phase.FINISHED: WorkersState.FINISHED,
}

ENDING = (Phase.SAVING, Phase.CLOSING, Phase.LEAVING)
#: Workers that have got SIGTERM, or time: how they end is a consequence.
AFTER_SIGTERM = (Phase.REPLACING, Phase.DRAINING, Phase.SAVING, Phase.CLOSING)
#: What comes next needs that nothing runs any more.
EMPTYING = (Phase.REPLACING, Phase.STARTING, Phase.STOPPING, Phase.DRAINING, Phase.LEAVING)
REPORTING = (Phase.RUNNING, Phase.FAILED)
STEPPING = (Phase.RUNNING, Phase.FAILED, Phase.DRAINING, Phase.SAVING)
