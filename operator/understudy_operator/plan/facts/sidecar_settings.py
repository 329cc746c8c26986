"""The settings of an installation for the sidecars of all pods, and for the gateways of rollout servers.

The operator and the webhook read it from their environment, which the chart writes.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from understudy_operator.plan.facts.host_ports import DEFAULT_HOST_PORTS, HostPorts, read_host_ports
from understudy_protocol import logs

ENV_RUN_AS = "UNDERSTUDY_SIDECAR_RUN_AS"
#: The user of the images. Without it in a container, the container would get the user of its pod.
DEFAULT_USER = 65532
_RUN_AS = re.compile(r"([0-9]{0,10}):([0-9]{0,10})")
_MOST = 2**31 - 1


@dataclass(frozen=True)
class SidecarSettings:
    """host_ports: the range of ports for pods with hostNetwork. user, group: numeric IDs; None leaves the choice to the
    pod, the image or the namespace.
    """

    log_format: str = logs.TEXT
    host_ports: HostPorts = DEFAULT_HOST_PORTS
    user: int | None = DEFAULT_USER
    group: int | None = None


DEFAULT_SIDECAR_SETTINGS = SidecarSettings()


def read_sidecar_settings(env: Mapping[str, str]) -> SidecarSettings:
    """Raises ValueError, which names the chart's value."""
    user, group = _run_as(env.get(ENV_RUN_AS, f"{DEFAULT_USER}:"))
    return SidecarSettings(logs.read_format(env), read_host_ports(env), user, group)


def _run_as(text: str) -> tuple[int | None, int | None]:
    found = _RUN_AS.fullmatch(text)
    user, group = (int(part) if part else None for part in found.groups()) if found is not None else (0, 0)
    if user == 0 or max(user or 0, group or 0) > _MOST:
        raise ValueError(
            f"{ENV_RUN_AS} (chart: sidecar.runAs) is {text[:80]!r}: set it to USER:GROUP, each a number or empty, and "
            "USER not 0, because sidecars never run as root"
        )
    return user, group
