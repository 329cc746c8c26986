"""The cluster as one object, for the command line, the tests and the demo.

`up` leads from any state to "all nodes Ready", and takes seconds if they are already.
`down` leaves no process, mount, interface or control group behind, and keeps the disks;
`down(purge=True)` removes those too. Methods about a node take its name, node1 to nodeN.
All raise subclasses of ClusterError, whose messages name the fix.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from . import faults, image_loading, images, logs, torch_install
from .api import Api
from .binaries import NAME_SERVER, ensure_binaries, missing_programs
from .cgroups import TREE, TREE_CPU_SHARES, ControlGroup
from .commands import Progress, run
from .containers import running_containers
from .control_plane import ControlPlane
from .failures import ClusterDown, ImageFailed, UnknownNode
from .host_tools import IMAGE_TOOLS, RUN_TOOLS, check_machine, ensure_tools, prepare_kernel
from .locks import claim_machine, give_up_machine, locked
from .name_server import NameServer, name_server_objects
from .network import SWITCH, Lan, NodeAddresses, remove_host_interface
from .node import Node, Power, remove_mount_points
from .oci_archive import ImageArchive
from .paths import CHECKOUT, Paths
from .processes import Processes
from .status import ClusterStatus, NodeStatus
from .unit_tools import ensure_unit_tools

DEFAULT_NODES = 4


class Cluster:
    """A real Kubernetes on this machine, shared by all programs that use the same cache.

    `nodes`: the number of nodes after `up`; never fewer than there are. None means
    the existing ones, or 4.
    """

    def __init__(self, nodes: int | None = None, *, quiet: bool = False, paths: Paths | None = None) -> None:
        self._wanted = nodes
        self._paths = paths or Paths.from_environment()
        self._progress = Progress(quiet)
        self._processes = Processes(self._paths)
        self._lan = Lan(self._paths, self._processes)
        self._control_plane = ControlPlane(self._paths, self._processes)
        self._name_server = NameServer(self._paths, self._processes)
        self.api = Api(self._paths.pki)

    # -- the whole cluster

    def up(self) -> None:
        """Bring the cluster up: restart, boot, thaw and reconnect its parts as needed.

        Takes seconds when it is up; half a minute when it is down; minutes the first time, when
        it builds the programs. Raises MissingTool, CommandFailed or ComponentFailed.
        """
        check_machine()
        with locked(self._paths.lock, self._progress):
            claim_machine(self._paths.cache)
            self.install_tools()
            self.build()
            prepare_kernel()
            self._lan.ensure()
            self._control_plane.ensure(self._progress)
            image_loading.remember(self._paths, images.ensure_pause(self._paths))
            self._name_server.ensure(self._progress)
            nodes = self._wanted_nodes()
            with ThreadPoolExecutor(len(nodes)) as pool:
                list(pool.map(self._ensure_node, nodes))
            ControlGroup(TREE).set_cpu_shares(TREE_CPU_SHARES)
            self.kubectl("apply", "-f", "-", input=name_server_objects())
        self._progress.report(f"{len(nodes)} nodes Ready; KUBECONFIG={self.kubeconfig}")

    def build(self) -> None:
        """Build the programs that are not in the cache yet, and nothing else."""
        with locked(self._paths.cache / "binaries.lock", self._progress):
            ensure_binaries(self._paths, self._progress)

    def install_tools(self) -> None:
        """Install the Debian packages that the machine lacks, for nodes and for images."""
        check_machine()
        with locked(self._paths.cache / "tools.lock", self._progress):
            ensure_tools(RUN_TOOLS | IMAGE_TOOLS, self._progress)

    def install_unit_tools(self) -> None:
        """Install the missing programs that unit tests need. Needs root only if something is missing."""
        with locked(self._paths.cache / "tools.lock", self._progress):
            ensure_unit_tools(self._paths, self._progress)

    def install_chromium(self) -> None:
        with locked(self._paths.cache / "tools.lock", self._progress):
            ensure_tools({"chromium": "chromium"}, self._progress)

    def missing(self) -> list[str]:
        """Those of "programs", "torch" and "images" that a first run still has to build or install into the cache."""
        missing = {
            "programs": bool(missing_programs(self._paths)),
            "torch": not torch_install.folder(self._paths).exists(),
            "images": not images.are_built(self._paths),
        }
        return [name for name, is_missing in missing.items() if is_missing]

    def down(self, *, purge: bool = False) -> None:
        """End all processes at once; with `purge` also delete all state (etcd, images in nodes, logs)."""
        check_machine()
        with locked(self._paths.lock, self._progress):
            claim_machine(self._paths.cache)
            everything = ControlGroup(TREE)
            everything.kill()
            remove_host_interface()
            everything.remove()
            remove_mount_points()
            for record in self._paths.records.glob("*.json"):
                record.unlink()
            give_up_machine()
            if purge:
                run(["rm", "-rf", "--", self._paths.state], timeout_s=120)
        self._progress.report("nothing of the cluster runs" + ("; its state is removed" if purge else ""))

    def status(self) -> ClusterStatus:
        """The running components, without changing anything."""
        try:
            ready = self.api.node_conditions()
        except ClusterDown:
            ready = {}
        nodes = self._known_nodes()
        names = [
            SWITCH,
            *self._control_plane.components,
            NAME_SERVER,
            *(name for node in nodes for name in node.components),
        ]
        return ClusterStatus(
            {name: self._processes.running(name) is not None for name in names},
            [NodeStatus(node.name, node.power(), ready.get(node.name, "Unknown")) for node in nodes],
        )

    # -- using it

    @property
    def kubeconfig(self) -> Path:
        """The administrator's kubeconfig; it exists once the cluster was up."""
        return self._paths.kubeconfig

    def kubectl_command(self, *words: str) -> list[str]:
        """The argv of kubectl against this cluster."""
        return [str(self._program("kubectl")), f"--kubeconfig={self.kubeconfig}", *words]

    def helm_command(self, *words: str) -> list[str]:
        """The argv of helm against this cluster."""
        return [str(self._program("helm")), f"--kubeconfig={self.kubeconfig}", *words]

    def kubectl(self, *words: str, input: str | None = None, check: bool = True, timeout_s: float = 120) -> str:  # noqa: A002
        """Run kubectl as the administrator; its stdout. Raises CommandFailed unless `check` is false."""
        return run(self.kubectl_command(*words), text_input=input, check=check, timeout_s=timeout_s)

    def helm(self, *words: str, timeout_s: float = 300) -> str:
        """Run helm as the administrator; its stdout. Raises CommandFailed."""
        return run(self.helm_command(*words), timeout_s=timeout_s)

    def nodes(self) -> list[str]:
        """The names of all nodes, running or not."""
        return [node.name for node in self._known_nodes()]

    def container_pids(self, namespace: str, pod: str) -> dict[str, int]:
        """The host's pid of the first process of each running container of a pod, by container name.

        Takes milliseconds, because it reads files only; empty if there is no such pod, or none of
        its containers runs.
        """
        found = running_containers(self._known_nodes())
        return {item.name: item.pid for item in found if (item.namespace, item.pod) == (namespace, pod)}

    def logs(self, folder: str | Path) -> Path:
        """Collect all logs, objects and events into a folder; bounded by about a minute."""
        target = Path(folder)
        logs.collect(
            target,
            self._paths,
            self._known_nodes(),
            (lambda words, limit_s: self.kubectl(*words, timeout_s=limit_s)) if self._answers() else None,
            self.status().table(),
        )
        return target

    # -- faults

    def power_off(self, node: str) -> None:
        """Take a node's power away; no peer sees its connections end. Returns when all of its processes are dead."""
        with self._holding(node) as found:
            faults.power_off(found)

    def freeze(self, node: str) -> None:
        """Hang a node: every process stops, and the kernel continues to acknowledge packets. Returns when all have
        stopped.
        """
        with self._holding(node) as found:
            faults.freeze(found)

    def thaw(self, node: str) -> None:
        """Thaw a frozen node."""
        with self._holding(node) as found:
            faults.thaw(found)

    def partition(self, node: str, *others: str) -> None:
        """Pull a node's network cable; all its processes continue, and its pods reach each other.

        With `others`: the node and each of them do not reach each other, and reach all others, the API server too.
        """
        with self._holding(node) as found:
            faults.partition(found, [self._node(other) for other in others])

    def restore(self, node: str, *, wait: bool = True) -> None:
        """Undo any of these; with `wait`, until the node is Ready and takes pods (60 s at most)."""
        with self._holding(node) as found:
            self._ensure_node(found, wait=wait)

    def stop_control_plane(self, component: str = "kube-apiserver") -> None:
        """End a component of the control plane, until `restore_control_plane`."""
        with locked(self._paths.lock, self._progress, shared=True):
            self._control_plane.stop(component)

    def restore_control_plane(self) -> None:
        """Start the components of the control plane that do not run. Returns when the API server is ready."""
        with locked(self._paths.lock, self._progress, shared=True):
            self._control_plane.ensure(self._progress)

    def power(self, node: str) -> Power:
        """Whether a node is on, off, frozen or partitioned."""
        return self._node(node).power()

    def node_command(self, node: str, *argv: str) -> list[str]:
        """The command that runs `argv` on a node: its network, its files, its host name."""
        return self._node(node).execute(argv)

    # -- images and torch

    def load(self, image: str | Path) -> str:
        """Load an OCI archive, or an image of buildah, into all nodes. Returns its reference.

        Nodes that are off load it when they boot. Raises ImageFailed if there is no such image.
        """
        archive = (
            ImageArchive.read(Path(image))
            if Path(image).is_file()
            else images.archive_of_buildah(self._paths, str(image))
        )
        self._load([archive])
        return archive.reference

    def load_images(self, *names: str, checkout: Path = CHECKOUT) -> dict[str, str]:
        """Build changed images among `base`, `operator` and `sidecar` (default: all), load them, and return the
        references.
        """
        archives = self.build_images(*names, checkout=checkout)
        self._load(list(archives.values()))
        return {name: archive.reference for name, archive in archives.items()}

    def build_images(self, *names: str, checkout: Path = CHECKOUT) -> dict[str, ImageArchive]:
        """Build changed images among `base`, `operator` and `sidecar` (default: all), without a cluster."""
        return {name: self._build(name, checkout) for name in names or ("base", *images.TARGETS)}

    def image(self, name: str) -> str:
        """The exact reference of `base`, `operator` or `sidecar` for this checkout's files."""
        return images.BASE_REFERENCE if name == "base" else images.project_reference(name)

    @property
    def base_image(self) -> str:
        """The reference of the Debian image with Python, for pods of tests."""
        return self.image("base")

    @property
    def torch_path(self) -> Path:
        """The folder to mount read-only and put on PYTHONPATH. Raises ImageFailed before `install_torch`."""
        folder = torch_install.folder(self._paths)
        if not folder.exists():
            raise ImageFailed(f"torch is not in {folder} yet; run `cluster torch`, which takes one to two minutes")
        return folder

    def install_torch(self) -> Path:
        """Install torch into the cache unless it is there. Returns its folder."""
        with locked(self._paths.cache / "torch.lock", self._progress):
            return torch_install.ensure_torch(self._paths, self._progress)

    # -- inside

    def _answers(self) -> bool:
        return self.api.ready()

    def _build(self, name: str, checkout: Path) -> ImageArchive:
        with locked(self._paths.cache / "images.lock", self._progress):
            if name == "base":
                return images.ensure_base(self._paths, self._progress)
            return images.ensure_project_image(self._paths, name, self._progress, checkout)

    def _load(self, archives: list[ImageArchive]) -> None:
        with locked(self._paths.lock, self._progress):
            for archive in archives:
                image_loading.remember(self._paths, archive)
            running = [node for node in self._known_nodes() if node.power() in (Power.ON, Power.PARTITIONED)]
            image_loading.load(running, archives, self._progress)

    def _ensure_node(self, node: Node, *, wait: bool = True) -> None:
        archives = image_loading.remembered(self._paths)
        if node.ensure(lambda booted: image_loading.load_into(booted, archives, self._progress), wait=wait):
            self._progress.report(f"{node.name} {'Ready' if wait else 'started'}")

    @contextmanager
    def _holding(self, name: str) -> Iterator[Node]:
        """The node, locked against `up`, `down` and other faults."""
        node = self._node(name)
        with (
            locked(self._paths.lock, self._progress, shared=True),
            locked(self._paths.state / f"{name}.lock", self._progress),
        ):
            yield node

    def _node(self, name: str) -> Node:
        for node in self._known_nodes():
            if node.name == name:
                return node
        raise UnknownNode(
            f"there is no node {name!r}; there are: {', '.join(self.nodes()) or 'none (run `cluster up`)'}"
        )

    def _known_nodes(self) -> list[Node]:
        folders = (self._paths.state / "nodes").glob("node[0-9]*")
        indices = sorted(int(folder.name.removeprefix("node")) for folder in folders)
        return [self._at(index) for index in indices]

    def _wanted_nodes(self) -> list[Node]:
        present = {node.addresses.index for node in self._known_nodes()}
        wanted = self._wanted or (0 if present else DEFAULT_NODES)
        return [self._at(index) for index in sorted(present | set(range(1, wanted + 1)))]

    def _at(self, index: int) -> Node:
        return Node(self._paths, self._processes, self._lan, NodeAddresses(index))

    def _program(self, name: str) -> Path:
        program = self._paths.binaries / name
        if not os.access(program, os.X_OK) or not self.kubeconfig.exists():
            raise ClusterDown("there is no cluster yet; run `cluster up`")
        return program
