"""Understudy on the local cluster, installed as a user installs it: the images, then the Helm chart."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import Cluster
from tests.e2e.objects import find, listed
from tests.e2e.waiting import wait_until

NAMESPACE = "understudy-system"
RELEASE = "understudy"
OPERATOR_PODS = "app.kubernetes.io/component=operator"
DEPLOYMENT = f"deployment/{RELEASE}-operator"
REPLICAS = 2  # the chart's default
LEADS_LIMIT_S = 60
SCALE_LIMIT_S = 60
CHECKOUT = Path(__file__).parents[2]
CHART = "charts/understudy"
PREVIOUS = max(Path(__file__).with_name("charts").glob("*.tgz"))


def install(
    cluster: Cluster,
    print_line: Callable[[str], None],
    *settings: str,
    chart: str = CHART,
    options: Sequence[str] = (),
    checkout: Path = CHECKOUT,
) -> None:
    """The images and the chart of a checkout; a second call with the same tree changes nothing."""
    images = cluster.load_images("base", "operator", "sidecar", checkout=checkout)
    operator, sidecar = images["operator"], images["sidecar"]
    print_line(f"installing the chart with {operator.rpartition('/')[2]}")
    cluster.helm(
        "upgrade",
        "--install",
        RELEASE,
        chart,
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--set",
        ",".join((f"operator.image={operator},sidecar.image={sidecar}", *settings)),
        "--wait",
        "--timeout",
        "90s",
        *options,
    )


def operator_node(cluster: Cluster) -> str:
    """The node of the operator that leads. The loss of the standby's node would change nothing."""

    def found() -> str:
        lease = find(cluster, NAMESPACE, "leases", f"{RELEASE}-operator") or {"spec": {}}
        name = (lease["spec"].get("holderIdentity") or "").rpartition("_")[0]
        pod = find(cluster, NAMESPACE, "pods", name) if name else None
        return pod["spec"].get("nodeName", "") if pod else ""

    return wait_until("an operator leads", found, LEADS_LIMIT_S)


def scale_operator(cluster: Cluster, replicas: int = REPLICAS) -> None:
    """Scale the operator, and wait until it has as many replicas."""
    cluster.kubectl("-n", NAMESPACE, "scale", DEPLOYMENT, f"--replicas={replicas}")
    if replicas:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=60s")
    else:
        # With grace period 0: the tests are about the time without an operator, and not about its shutdown.
        gone = ("delete", "pod", "-l", OPERATOR_PODS, "--grace-period=0", "--force", "--ignore-not-found")
        cluster.kubectl("-n", NAMESPACE, *gone)
        wait_until("no operator runs", lambda: not listed(cluster, NAMESPACE, "pods", OPERATOR_PODS), SCALE_LIMIT_S)
