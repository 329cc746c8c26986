"""Why a pod has failed, with the kubelet's message, and whether it could start at all.

A kubelet may reject a pod that the scheduler has assigned to it (its devices are broken, its topology does not fit). A
container whose command is not in its image cannot start. In both cases none of the job's code has run.
"""

from collections.abc import Iterator

from understudy_operator.runtime.decoded_fields import PodStatus, Terminated
from understudy_protocol import pod as names

_NOT_STARTED = ("StartError", "ContainerCannotRun")


def failure(status: PodStatus) -> str:
    """The reason as text; "" if the pod has not failed."""
    if status.get("phase") != "Failed":
        return ""
    if status.get("reason"):
        return _joined(status["reason"], status.get("message", ""))
    for name, end in _ends(status):
        if end.get("exitCode") and name != names.SIDECAR_CONTAINER:  # the sidecar's message is the close
            detail = _joined(end.get("reason", ""), end.get("message", ""))
            return _joined(f"container {name} ended with exit code {end['exitCode']}", detail)
    return _joined("", status.get("message", ""))


def could_start(status: PodStatus, sidecar_ran: bool) -> bool:
    """Whether a failed pod could start. True for other pods."""
    if status.get("phase") != "Failed":
        return True
    return sidecar_ran and not any(end.get("reason") in _NOT_STARTED for _, end in _ends(status))


def _ends(status: PodStatus) -> Iterator[tuple[str, Terminated]]:
    for container in (*(status.get("containerStatuses") or ()), *(status.get("initContainerStatuses") or ())):
        yield container["name"], container.get("state", {}).get("terminated", {})


def _joined(*parts: str) -> str:
    return ": ".join(part for part in parts if part)
