"""A bare jax.distributed.initialize() joins the processes of the round.

jax asks a list of classes, one for each kind of cluster, for the address of its coordinator, which is a thread of
process 0, for the number of processes, and for the process's own number. This module puts a class for rounds in front
of them, when the script imports jax.

Rules: MASTER_PORT is free for jax if the worker of rank 0 would serve torch's store. If a store listens there already,
process 0 chooses a port, and the others get it through the store; all members have torch then. The others wait until
jax's coordinator listens: if its client called too early, it would call again only after a second. On TPUs, jax uses
its own classes, because the TPU runtime numbers the processes itself.
"""

import datetime
import importlib
import os
import socket
import sys
import time
from typing import Any, Optional

from understudy_zygote.on_import import after_import

_CLUSTERS = "jax._src.clusters"
_VARIABLES = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")
_STORE_LISTENS = "TORCHELASTIC_USE_AGENT_STORE"
_KEY = "understudy/jax"
DEFAULT_TIMEOUT_S = 300
#: Pauses between calls of a worker. They grow by a fifth, because thousands of workers may wait for a slow process 0.
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.01, 0.25


def join_jax_to_round() -> None:
    """Called in a fork before its script runs."""
    after_import(_CLUSTERS, _put_in_front)


def _put_in_front(clusters: Any) -> None:
    known = clusters.ClusterEnv._cluster_types
    cluster = _cluster_of_rounds(clusters.ClusterEnv)
    known[:] = [cluster, *(other for other in known if other is not cluster)]


def _cluster_of_rounds(base: Any) -> Any:
    class Understudy(base):  # type: ignore[misc]
        name = "understudy"
        _calls = 0

        @classmethod
        def is_env_present(cls) -> bool:
            return all(os.environ.get(name) for name in _VARIABLES) and not _runs_on_tpu()

        @classmethod
        def get_coordinator_address(
            cls, timeout_secs: Optional[int] = None, override_coordinator_port: Optional[str] = None
        ) -> str:
            address, port = os.environ["MASTER_ADDR"], override_coordinator_port
            timeout_s = timeout_secs or DEFAULT_TIMEOUT_S
            if not port and os.environ.get(_STORE_LISTENS) != "True":
                port = os.environ["MASTER_PORT"]
            if not port:
                cls._calls += 1
                port = _agreed_port(f"{_KEY}/{cls._calls}", timeout_s)
            if os.environ["RANK"] != "0":
                _wait_until_listens(address, int(port), timeout_s)
            return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"

        @classmethod
        def get_process_count(cls) -> int:
            return int(os.environ["WORLD_SIZE"])

        @classmethod
        def get_process_id(cls) -> int:
            return int(os.environ["RANK"])

        @classmethod
        def get_local_process_id(cls) -> Optional[int]:
            """The process's device. None: it uses all devices of its pod."""
            return int(os.environ["LOCAL_RANK"]) if os.environ["LOCAL_WORLD_SIZE"] != "1" else None

    return Understudy


def _agreed_port(key: str, timeout_s: int) -> str:
    """A port that is free on the pod of rank 0. Raises an error of torch if rank 0 has not chosen one in time."""
    distributed: Any = importlib.import_module("torch.distributed")
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = distributed.TCPStore(address, port, None, False, timeout=datetime.timedelta(seconds=timeout_s))
    if os.environ["RANK"] == "0":
        with socket.socket() as probe:
            probe.bind(("", 0))
            store.set(key, str(probe.getsockname()[1]))
    return str(store.get(key).decode())


def _wait_until_listens(address: str, port: int, timeout_s: float) -> None:
    """After the timeout, jax's client reports the error."""
    until, pause_s = time.monotonic() + timeout_s, _FIRST_PAUSE_S
    while (left_s := until - time.monotonic()) > 0:
        try:
            socket.create_connection((address, port), left_s).close()
            return
        except OSError:
            time.sleep(pause_s)
            pause_s = min(1.2 * pause_s, _LONGEST_PAUSE_S)


def _runs_on_tpu() -> bool:
    return bool(getattr(sys.modules.get("jax._src.cloud_tpu_init"), "running_in_cloud_tpu_vm", False))
