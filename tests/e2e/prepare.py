"""Builds all that the e2e tests and the demo need and that is missing: `python -m tests.e2e.prepare`.

The first run compiles Kubernetes, installs torch and builds the images, all at the same time: a compiler waits for
downloads, and a download leaves the processor to the compiler. A later run finds everything in the cache.
"""

import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from tests.cluster import Cluster, ClusterError
from tests.e2e.installation import NAMESPACE, install
from tests.e2e.lanes import NODES, SYSTEM_NODE, create_system_namespace, label_nodes
from tests.e2e.leftovers import delete_leftovers
from tests.e2e.objects import listed
from tests.e2e.waiting import wait_until

DEMO_NODES = 4
#: Minutes on two cores, each step alone; together they take less than their sum.
EXPECTED_MINUTES = {
    "programs": ("compile Kubernetes, containerd, etcd and CoreDNS from their Go modules", "6 to 14"),
    "torch": ("install torch (5 GB)", "1 to 3"),
    "images": ("build the images: Debian with Python, the operator, the sidecar", "2 to 4"),
}
READY_LIMIT_S = 90


def prepare() -> Cluster:
    """A running cluster with torch and Understudy on it. Raises ClusterError, which names the fix."""
    cluster = Cluster(nodes=DEMO_NODES)
    _prepare(cluster)
    return cluster


def prepare_lanes() -> None:
    """The same with the nodes of all lanes, the operator on a node of its own, and no object of an earlier run."""
    cluster = Cluster(nodes=NODES)

    def separate() -> None:
        label_nodes(cluster)
        create_system_namespace(cluster, NAMESPACE)

    _prepare(cluster, separate)
    delete_leftovers(cluster)
    _move_to_system_node(cluster)


def _prepare(cluster: Cluster, before_install: Callable[[], None] = lambda: None) -> None:
    start = time.monotonic()

    def print_line(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {text}", flush=True)

    if missing := cluster.missing():
        print_line("a first run prepares the cache, with these steps at the same time (minutes on two cores):")
        for name in missing:
            description, minutes = EXPECTED_MINUTES[name]
            print_line(f"  {minutes:>7}  {description}")
        print_line("  0.5 to 1  then: start the cluster and install Understudy on it")
    cluster.install_tools()
    with ThreadPoolExecutor(3) as steps:
        programs = steps.submit(cluster.build)
        torch, images = steps.submit(cluster.install_torch), steps.submit(cluster.build_images)
        programs.result()
        cluster.up()
        torch.result()
        images.result()
    before_install()
    install(cluster, print_line)
    print_line("ready")


def _move_to_system_node(cluster: Cluster) -> None:
    """Recreate the pods of an installation without lanes that are on other nodes."""

    def elsewhere() -> list[str]:
        pods = listed(cluster, NAMESPACE, "pods")
        return [pod["metadata"]["name"] for pod in pods if pod["spec"].get("nodeName", SYSTEM_NODE) != SYSTEM_NODE]

    if pods := elsewhere():
        cluster.kubectl("-n", NAMESPACE, "delete", "pod", *pods, "--wait=false")
        wait_until(f"all pods of {NAMESPACE} run on {SYSTEM_NODE}", lambda: not elsewhere(), READY_LIMIT_S)
        for deployment in ("operator", "webhook", "rotation"):
            status = ("rollout", "status", f"deployment/understudy-{deployment}", f"--timeout={READY_LIMIT_S}s")
            cluster.kubectl("-n", NAMESPACE, *status)


def main() -> int:
    try:
        prepare()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
