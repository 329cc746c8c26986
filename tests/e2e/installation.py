"""Understudy on the local cluster, installed as a user installs it: the images, then the Helm chart."""

from collections.abc import Callable, Sequence
from pathlib import Path

from tests.cluster import Cluster
from tests.e2e.waiting import wait_until

NAMESPACE = "understudy-system"
RELEASE = "understudy"
OPERATOR_PODS = "app.kubernetes.io/component=operator"
DEPLOYMENT = f"deployment/{RELEASE}-operator"
REPLICAS = 2  # the chart's own number
LEADS_LIMIT_S = 60
CHART = "charts/understudy"
PREVIOUS = max(Path(__file__).with_name("charts").glob("*.tgz"))


def install(
    cluster: Cluster, say: Callable[[str], None], *settings: str, chart: str = CHART, options: Sequence[str] = ()
) -> None:
    """The images of this checkout and the chart with them; a second call with the same tree changes nothing."""
    images = cluster.load_images("base", "operator", "sidecar")
    operator, sidecar = images["operator"], images["sidecar"]
    say(f"installing the chart with {operator.rpartition('/')[2]}")
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
    """The node of the operator that leads. A standby may be anywhere: nobody would miss it."""

    def found() -> str:
        lease = ("get", "lease", f"{RELEASE}-operator", "-o", "jsonpath={.spec.holderIdentity}")
        pod = cluster.kubectl("-n", NAMESPACE, *lease, check=False).rpartition("_")[0]
        if not pod:  # nobody leads just now
            return ""
        return cluster.kubectl(
            "-n", NAMESPACE, "get", "pod", pod, "--ignore-not-found", "-o", "jsonpath={.spec.nodeName}", check=False
        )

    return wait_until("an operator leads", found, LEADS_LIMIT_S)


def scale_operator(cluster: Cluster, replicas: int = REPLICAS) -> None:
    """Scale the operator, and wait until it is so."""
    cluster.kubectl("-n", NAMESPACE, "scale", DEPLOYMENT, f"--replicas={replicas}")
    if replicas:
        cluster.kubectl("-n", NAMESPACE, "rollout", "status", DEPLOYMENT, "--timeout=60s")
    else:
        cluster.kubectl(
            "-n",
            NAMESPACE,
            "wait",
            "--for=delete",
            "pod",
            "-l",
            OPERATOR_PODS,
            "--timeout=60s",
        )
