"""Requirements of the machine itself: root, a few Debian packages, and disk space.

As root on a machine with apt-get, missing packages are installed (one `apt-get update`
first, without questions); otherwise the error has the exact command. Only these changes
are made to the host: br_netfilter is loaded, and the inotify limits are raised (never
lowered), because every kubelet and containerd uses some of the few that one user gets.
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path

from .commands import Progress, run
from .failures import MissingTool

# program -> Debian package
RUN_TOOLS = {
    "ip": "iproute2",
    "iptables": "iptables",
    "nsenter": "util-linux",
    "openssl": "openssl",
    "runc": "runc",
}
IMAGE_TOOLS = {"buildah": "buildah", "debootstrap": "debootstrap"}
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
INOTIFY_LIMITS = {"max_user_instances": 8192, "max_user_watches": 524288}


def check_machine() -> None:
    """Raise MissingTool unless this is Linux with root's rights."""
    if os.uname().sysname != "Linux" or os.geteuid() != 0:
        raise MissingTool(
            f"the cluster runs containers and network namespaces: it needs Linux and root, and this is "
            f"{os.uname().sysname} as uid {os.geteuid()}. Run it as root, in a virtual machine or a CI runner."
        )


def ensure_tools(wanted: dict[str, str], progress: Progress) -> None:
    """Install the missing Debian packages of `wanted`.

    Raises MissingTool with the command to run if that is not possible.
    """
    missing = sorted({package for tool, package in wanted.items() if find_tool(tool) is None})
    if not missing:
        return
    command = f"apt-get update && apt-get install --yes --no-install-recommends {' '.join(missing)}"
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        raise MissingTool(f"missing on this machine: {', '.join(missing)}. Install with: {command}")
    progress.report(f"installing {', '.join(missing)}")
    quiet = {"DEBIAN_FRONTEND": "noninteractive"}
    run(["apt-get", "update", "-q"], timeout_s=300, env=quiet)
    run(["apt-get", "install", "--yes", "-q", "--no-install-recommends", *missing], timeout_s=600, env=quiet)
    stays = [tool for tool in wanted if find_tool(tool) is None]
    if stays:
        raise MissingTool(f"apt-get ran, but {', '.join(stays)} is still not there. Try: {command}")


def find_tool(name: str) -> str | None:
    """The path of a program on the machine, also in the sbin folders that a user's PATH may lack."""
    return shutil.which(name, path=SEARCH_PATH)


def tool(name: str) -> str:
    """The path of a program that `ensure_tools` has seen."""
    path = find_tool(name)
    if path is None:
        raise MissingTool(f"`{name}` is not on this machine; run `cluster up` once, which installs it")
    return path


def ensure_go(needed: str) -> str:
    """The path of a Go of version `needed` (like 1.26.8) or newer. Raises MissingTool, which names the fix."""
    go = shutil.which("go") or shutil.which("go", path=f"/usr/local/go/bin:{SEARCH_PATH}")
    archive = f"https://go.dev/dl/go{needed}.linux-{machine_architecture()}.tar.gz"
    advice = f"Install it with: curl -L {archive} | tar -C /usr/local -xz"
    if go is None:
        raise MissingTool(f"Go is not on this machine, and the cluster's programs are built with Go {needed}. {advice}")
    seen = run([go, "env", "GOVERSION"], env={"GOTOOLCHAIN": "local"}).strip()
    if _version(seen) < _version(needed):
        raise MissingTool(f"{go} is {seen}, and the cluster's programs need Go {needed}. {advice}")
    return go


def _version(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", text)][:3]


def machine_architecture() -> str:
    """This machine's architecture in the terms of Go and OCI."""
    return {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine, os.uname().machine)


def prepare_kernel() -> None:
    """Load the modules that the network needs, and raise the inotify limits; higher values are kept.

    Raises MissingTool when the kernel has no bridge netfilter, which Services need.
    """
    for name, wanted in INOTIFY_LIMITS.items():
        setting = Path("/proc/sys/fs/inotify") / name
        if int(setting.read_text()) < wanted:
            setting.write_text(str(wanted))
    if not Path("/proc/sys/net/bridge").exists():
        run(["modprobe", "-a", "br_netfilter", "veth", "overlay"], check=False)
    if not Path("/proc/sys/net/bridge").exists():
        raise MissingTool(
            "the kernel has no bridge netfilter (/proc/sys/net/bridge), without which pods reach no Service; "
            "load it with: modprobe br_netfilter"
        )


def overlay_works(folder: Path) -> bool:
    """Whether overlay mounts can be created in `folder`: the kernel has them, and the folder is not on one itself."""
    if "\toverlay\n" not in Path("/proc/filesystems").read_text():
        return False
    return "overlay" not in run(["stat", "--file-system", "--format=%T", folder])
