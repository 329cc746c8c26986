"""The command line: `python -m tests.cluster <verb>`. An error is one message, and status 1."""

from __future__ import annotations

import argparse
import os
import sys

from .cluster import Cluster
from .failures import ClusterError

EPILOG = """A first `up` takes about six minutes on two cores, because it builds Kubernetes; later ones
half a minute, and seconds when the cluster is up. Everything is kept in $UNDERSTUDY_CACHE
(default ~/.cache/understudy)."""
NODE_VERBS = ("power-off", "freeze", "thaw", "partition", "restore", "exec")


def parser() -> argparse.ArgumentParser:
    """The verbs and their options."""
    top = argparse.ArgumentParser(prog="cluster", description=__doc__, epilog=EPILOG)
    verbs = top.add_subparsers(dest="verb", required=True, metavar="VERB")
    up = verbs.add_parser("up", help="bring the cluster up, or heal it")
    up.add_argument("--nodes", type=int, help="how many nodes (default: those there are, or 4)")
    down = verbs.add_parser("down", help="end all of it; disks are kept")
    down.add_argument("--purge", action="store_true", help="remove the disks too: etcd, images in nodes, logs")
    verbs.add_parser("status", help="which components run, and how the nodes are")
    verbs.add_parser("kubeconfig", help="print the path of the administrator's kubeconfig")
    for name in ("kubectl", "helm"):
        verbs.add_parser(name, help=f"run {name} against the cluster", add_help=False)
    load = verbs.add_parser("load", help="load an OCI archive or one of buildah's images into all nodes")
    load.add_argument("image")
    images = verbs.add_parser("images", help="build changed images (base and the project's), and load them")
    images.add_argument("names", nargs="*", metavar="base|operator|sidecar", help="default: all three")
    verbs.add_parser("binaries", help="build Kubernetes' programs into the cache")
    verbs.add_parser("unit-tools", help="install the tools of unit tests: openssl, a C compiler, promtool, nginx")
    verbs.add_parser("chromium", help="install the browser of tests/ui")
    verbs.add_parser("torch", help="install torch into the cache, for pods to mount")
    logs = verbs.add_parser("logs", help="collect logs, objects and events")
    logs.add_argument("folder", nargs="?", default="build/cluster-logs", help="default: %(default)s")
    node = verbs.add_parser("node", help="break or restore a node, or run something on it")
    node.add_argument("name")
    node.add_argument("action", choices=NODE_VERBS)
    node.add_argument("command", nargs=argparse.REMAINDER, help="for exec")
    return top


def main(words: list[str]) -> int:
    """Run one verb. Returns the exit status."""
    if words[:1] in (["kubectl"], ["helm"]):  # all later arguments are theirs, --help too
        return _run_command(words[0], words[1:])
    options = parser().parse_args(words)
    cluster = Cluster(getattr(options, "nodes", None))
    match options.verb:
        case "up":
            cluster.up()
        case "down":
            cluster.down(purge=options.purge)
        case "status":
            print(cluster.status().table(), end="")
        case "kubeconfig":
            print(cluster.kubeconfig)
        case "load" | "images" | "binaries" | "unit-tools" | "chromium" | "torch":
            _provide(cluster, options)
        case "logs":
            print(cluster.logs(options.folder))
        case "node":
            _node(cluster, options.name, options.action, options.command)
    return 0


def _provide(cluster: Cluster, options: argparse.Namespace) -> None:
    """The parts that are built or installed, into the cache or into the nodes."""
    match options.verb:
        case "load":
            print(cluster.load(options.image))
        case "images":
            for name, reference in cluster.load_images(*options.names).items():
                print(f"{name}\t{reference}")
        case "binaries":
            cluster.build()
        case "unit-tools":
            cluster.install_unit_tools()
        case "chromium":
            cluster.install_chromium()
        case "torch":
            print(cluster.install_torch())


def _node(cluster: Cluster, name: str, action: str, command: list[str]) -> None:
    match action:
        case "power-off":
            cluster.power_off(name)
        case "freeze":
            cluster.freeze(name)
        case "thaw":
            cluster.thaw(name)
        case "partition":
            cluster.partition(name, *command)
        case "restore":
            cluster.restore(name)
        case "exec":
            argv = cluster.node_command(name, *(command or ["sh"]))
            os.execv(argv[0], argv)


def _run_command(program: str, words: list[str]) -> int:
    cluster = Cluster()
    argv = cluster.kubectl_command(*words) if program == "kubectl" else cluster.helm_command(*words)
    os.execv(argv[0], argv)


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except ClusterError as error:
        print(f"cluster: {error}", file=sys.stderr)
        sys.exit(1)
    except KeyboardInterrupt:
        print("cluster: interrupted; the same command continues where it stopped", file=sys.stderr)
        sys.exit(130)
