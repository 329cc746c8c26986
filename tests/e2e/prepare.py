"""Everything that the e2e tests and the demo need, made where it is missing: `python -m tests.e2e.prepare`.

The first run builds Kubernetes and installs torch; a later one finds all of it there and takes seconds.
"""

import sys
import time

from tests.cluster import Cluster, ClusterError
from tests.e2e.installation import install

FIRST_RUN = (
    "A first run takes about 15 minutes on two cores (Kubernetes is built, torch installed); later ones seconds."
)
NODES = 4


def prepare() -> Cluster:
    """A running cluster with torch at hand and Understudy installed. Raises ClusterError, which says what to do."""
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"[{time.monotonic() - start:6.1f} s] {text}", flush=True)

    say(FIRST_RUN)
    cluster = Cluster(nodes=NODES)
    cluster.up()
    cluster.install_torch()
    install(cluster, say)
    say("ready")
    return cluster


def main() -> int:
    try:
        prepare()
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
