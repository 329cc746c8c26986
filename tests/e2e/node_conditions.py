"""A condition on a node, as a health monitor writes it (NVSentinel's of a fatal Xid), and its withdrawal."""

import json

from tests.cluster import Cluster
from tests.e2e.training import Raw

XID = {
    "type": "SysLogsXIDError",
    "status": "True",
    "reason": "SysLogsXIDErrorIsNotHealthy",
    "message": "ErrorCode:79 PCI:0002:00:00 GPU has fallen off the bus Recommended Action=RESTART_BM;",
}
NO_XID = {**XID, "status": "False", "reason": "SysLogsXIDErrorIsHealthy", "message": ""}


def condition(cluster: Cluster, node: str, result: Raw) -> None:
    patch = json.dumps({"status": {"conditions": [result]}})
    cluster.kubectl("patch", "node", node, "--subresource=status", "--type=strategic", "-p", patch)
