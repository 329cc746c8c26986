"""A fork of the zygote that serves the store of a round: it listens before the workers start, and outlives them."""

import json
import os
import signal
import socket
import sys
from typing import Any

from understudy_zygote.child import name_process


def serve(control: socket.socket) -> None:
    """Report the port that the kernel has chosen, and serve the store until this process is killed. Never returns."""
    name_process("store")
    answer: dict[str, Any] = {"pid": os.getpid()}
    tcp_store = None
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        answer["why"] = "torch.distributed is not among the preloaded modules"
    else:
        try:
            tcp_store = distributed.TCPStore("localhost", 0, None, True, wait_for_workers=False)
            answer["port"] = tcp_store.port
        except Exception as error:  # noqa: BLE001 - no free port: rank 0 serves the store
            answer["why"] = f"{type(error).__name__}: {error}"
    try:
        control.send(json.dumps(answer).encode())
    except OSError:  # the launcher has ended
        os._exit(0)
    control.close()
    while tcp_store is not None:
        signal.pause()
    os._exit(0)
