"""Understudy on the local cluster, installed as a user installs it: the images, then the Helm chart."""

from collections.abc import Callable

from tests.cluster import Cluster

NAMESPACE = "understudy-system"
RELEASE = "understudy"
DEPLOYMENT = f"deployment/{RELEASE}-operator"


def install(cluster: Cluster, say: Callable[[str], None]) -> None:
    """The images of this checkout and the chart with them; a second call with the same tree changes nothing."""
    images = cluster.load_images("base", "operator", "sidecar")
    operator, sidecar = images["operator"], images["sidecar"]
    say(f"installing the chart with {operator.rpartition('/')[2]}")
    cluster.helm(
        "upgrade",
        "--install",
        RELEASE,
        "charts/understudy",
        "--namespace",
        NAMESPACE,
        "--create-namespace",
        "--set",
        f"operator.image={operator},sidecar.image={sidecar}",
        "--wait",
        "--timeout",
        "90s",
    )


def operator_node(cluster: Cluster) -> str:
    """The node that the operator runs on."""
    selector = ("-l", "app.kubernetes.io/component=operator", "-o", "jsonpath={.items[0].spec.nodeName}")
    return cluster.kubectl("-n", NAMESPACE, "get", "pods", *selector)


def scale_operator(cluster: Cluster, replicas: int) -> None:
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
            "app.kubernetes.io/component=operator",
            "--timeout=60s",
        )
