"""The programs that unit tests need: openssl, a C compiler, ip and nginx, which are Debian packages, and promtool.

promtool is unpacked from Debian's package `prometheus` into the cache, because an installed package starts a server.
"""

from __future__ import annotations

import os
import shutil

from .commands import Progress, run
from .failures import CommandFailed, MissingTool
from .host_tools import ensure_tools, find_tool
from .paths import Paths

UNIT_TOOLS = {"openssl": "openssl", "cc": "gcc", "ip": "iproute2", "nginx": "nginx-light"}
PACKAGE = "prometheus"
DOWNLOAD_LIMIT_S = 300


def ensure_unit_tools(paths: Paths, progress: Progress) -> None:
    """Raises MissingTool, which names the fix, if something is missing and cannot be installed."""
    ensure_tools(UNIT_TOOLS, progress)
    if find_promtool(paths) is None:
        _unpack_promtool(paths, progress)


def find_promtool(paths: Paths) -> str | None:
    """The machine's own promtool, or the cache's."""
    return find_tool("promtool") or (str(paths.promtool) if paths.promtool.exists() else None)


def promtool(paths: Paths) -> str:
    """The path of promtool. Raises MissingTool if `ensure_unit_tools` has not run."""
    path = find_promtool(paths)
    if path is None:
        raise MissingTool("promtool is not on this machine; run `make tools` once, which unpacks it into the cache")
    return path


def _unpack_promtool(paths: Paths, progress: Progress) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise MissingTool(
            "promtool is not on this machine, and neither are apt-get and dpkg-deb, which would get it. "
            "Put the promtool of a release of Prometheus into /usr/local/bin"
        )
    progress.report(f"unpacking promtool of Debian's package {PACKAGE} into the cache")
    workshop = paths.cache / f".promtool.{os.getpid()}"
    workshop.mkdir(parents=True)
    try:
        if os.geteuid() == 0:
            run(["apt-get", "update", "-q"], timeout_s=DOWNLOAD_LIMIT_S)
        run(["apt-get", "download", "-q", PACKAGE], timeout_s=DOWNLOAD_LIMIT_S, cwd=workshop)
        (package,) = workshop.glob("*.deb")
        run(["dpkg-deb", "--extract", package, workshop / "unpacked"], timeout_s=DOWNLOAD_LIMIT_S)
        (workshop / "unpacked" / "usr" / "bin" / "promtool").rename(paths.promtool)
    except CommandFailed as error:
        raise MissingTool(f"no promtool: put one into /usr/local/bin, or try again. {error}") from error
    finally:
        shutil.rmtree(workshop)
