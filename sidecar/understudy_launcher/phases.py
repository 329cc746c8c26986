"""The supervisor's states, and the states that it reports to the sidecar. The transitions are in `supervise`."""

from enum import Enum

from understudy_protocol.enums import WorkersState


class Phase(Enum):
    """The states of the supervisor's transition table."""

    IDLE = "idle"  # no workers
    REPLACING = "replacing"  # a round waits while the old round's workers have the worker grace
    STARTING = "starting"  # a round waits until no process of the old one is left
    RUNNING = "running"
    FAILED = "failed"  # a worker failed; its neighbors may still run
    FINISHED = "finished"  # all workers exited 0
    DRAINING = "draining"  # the workers got SIGTERM, and the launcher stays
    STOPPING = "stopping"  # the workers are killed, and no round follows
    SAVING = "saving"  # the pod ends, and the workers got SIGTERM
    CLOSING = "closing"  # the job is closed, and the workers got SIGTERM
    LEAVING = "leaving"  # the launcher exits when no process is left


class OnSigterm(Enum):
    """Whether workers may save when the pod is asked to end."""

    AUTO = "Auto"  # unless the node is faulty: a save on dying hardware hangs or corrupts the checkpoint
    ALWAYS = "Always"
    NEVER = "Never"


#: The supervisor reports RUNNING or FAILED in the other phases, in which old workers may run.
REPORTED_STATE = {
    Phase.IDLE: WorkersState.IDLE,
    Phase.REPLACING: WorkersState.STARTING,
    Phase.STARTING: WorkersState.STARTING,
    Phase.FAILED: WorkersState.FAILED,
    Phase.FINISHED: WorkersState.FINISHED,
}

ENDING = (Phase.SAVING, Phase.CLOSING, Phase.LEAVING)
#: The workers have got SIGTERM or a grace, so their exit is not reported as a failure.
AFTER_SIGTERM = (Phase.REPLACING, Phase.DRAINING, Phase.SAVING, Phase.CLOSING)
#: The next phase requires that no process is left.
EMPTYING = (Phase.REPLACING, Phase.STARTING, Phase.STOPPING, Phase.DRAINING, Phase.LEAVING)
REPORTING = (Phase.RUNNING, Phase.FAILED)
STEPPING = (Phase.RUNNING, Phase.FAILED, Phase.DRAINING, Phase.SAVING)
