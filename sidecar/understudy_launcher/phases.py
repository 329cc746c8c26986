"""The supervisor's states, and the states that it reports to the sidecar. The transitions are in `supervise`."""

from enum import Enum

from understudy_protocol.enums import WorkersState


class LauncherPhase(Enum):
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
    LauncherPhase.IDLE: WorkersState.IDLE,
    LauncherPhase.REPLACING: WorkersState.STARTING,
    LauncherPhase.STARTING: WorkersState.STARTING,
    LauncherPhase.FAILED: WorkersState.FAILED,
    LauncherPhase.FINISHED: WorkersState.FINISHED,
}

ENDING = (LauncherPhase.SAVING, LauncherPhase.CLOSING, LauncherPhase.LEAVING)
#: The workers have got SIGTERM or a grace, so their exit is not reported as a failure.
AFTER_SIGTERM = (LauncherPhase.REPLACING, LauncherPhase.DRAINING, LauncherPhase.SAVING, LauncherPhase.CLOSING)
#: The next phase requires that no process is left.
EMPTYING = (
    LauncherPhase.REPLACING,
    LauncherPhase.STARTING,
    LauncherPhase.STOPPING,
    LauncherPhase.DRAINING,
    LauncherPhase.LEAVING,
)
REPORTING = (LauncherPhase.RUNNING, LauncherPhase.FAILED)
STEPPING = (LauncherPhase.RUNNING, LauncherPhase.FAILED, LauncherPhase.DRAINING, LauncherPhase.SAVING)
