"""The programs that unit tests need: openssl, a C compiler and ip, which are Debian packages, promtool and nginx.

promtool and nginx are unpacked from Debian's packages into the cache, because an installed package starts a server.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

from .commands import Progress, run
from .failures import CommandFailed, MissingTool
from .host_tools import ensure_tools, find_tool
from .paths import Paths

UNIT_TOOLS = {"openssl": "openssl", "cc": "gcc", "ip": "iproute2"}
DOWNLOAD_LIMIT_S = 300


@dataclass(frozen=True)
class UnpackedTool:
    """A program that is in a package that starts a server. packages: one of them has it, in each release of Debian and
    Ubuntu. path: in the package.
    """

    name: str
    packages: tuple[str, ...]
    path: str

    def find(self, paths: Paths) -> str | None:
        """The machine's own program, or the cache's."""
        kept = self._kept(paths)
        return find_tool(self.name) or (str(kept) if kept.exists() else None)

    def get(self, paths: Paths) -> str:
        """The path of the program. Raises MissingTool if `ensure` has not run."""
        found = self.find(paths)
        if found is None:
            raise MissingTool(
                f"{self.name} is not on this machine; run `make tools` once, which unpacks it into the cache"
            )
        return found

    def ensure(self, paths: Paths, progress: Progress) -> None:
        """Raises MissingTool, which names the fix."""
        if self.find(paths) is not None:
            return
        if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
            raise MissingTool(
                f"{self.name} is not on this machine, and neither are apt-get and dpkg-deb, which would get it. "
                f"Put {self.name} into /usr/local/bin"
            )
        progress.report(f"unpacking {self.name} from Debian's {' and '.join(self.packages)} into the cache")
        workshop = paths.cache / f".{self.name}.{os.getpid()}"
        workshop.mkdir(parents=True)
        try:
            if os.geteuid() == 0:
                run(["apt-get", "update", "-q"], timeout_s=DOWNLOAD_LIMIT_S)
            run(["apt-get", "download", "-q", *self.packages], timeout_s=DOWNLOAD_LIMIT_S, cwd=workshop)
            for package in workshop.glob("*.deb"):
                run(["dpkg-deb", "--extract", package, workshop / "unpacked"], timeout_s=DOWNLOAD_LIMIT_S)
            (workshop / "unpacked" / self.path).rename(self._kept(paths))
        except (CommandFailed, OSError) as error:
            raise MissingTool(f"no {self.name}: put one into /usr/local/bin, or try again. {error}") from error
        finally:
            shutil.rmtree(workshop)

    def _kept(self, paths: Paths) -> Path:
        return paths.cache / self.name


PROMTOOL = UnpackedTool("promtool", ("prometheus",), "usr/bin/promtool")
NGINX = UnpackedTool("nginx", ("nginx", "nginx-light"), "usr/sbin/nginx")


def ensure_unit_tools(paths: Paths, progress: Progress) -> None:
    """Raises MissingTool, which names the fix, if something is missing and cannot be installed."""
    ensure_tools(UNIT_TOOLS, progress)
    for each in (PROMTOOL, NGINX):
        each.ensure(paths, progress)
