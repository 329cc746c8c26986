"""A fork of the zygote that holds the store of a round: it listens before any worker is there, and outlives them."""

import json
import os
import signal
import socket
import sys
from typing import Any

from understudy_zygote.child import name_process


def serve(control: socket.socket) -> None:
    """Tell the port that the kernel has chosen, and hold the store until somebody ends this process. Never returns."""
    name_process("store")
    answer: dict[str, Any] = {"pid": os.getpid()}
    held = None
    try:
        held = sys.modules["torch.distributed"].TCPStore("localhost", 0, None, True, wait_for_workers=False)
        answer["port"] = held.port
    except Exception as error:  # noqa: BLE001 - a torch without distributed, or none, or no port: workers do without
        answer["why"] = f"{type(error).__name__}: {error}"
    control.send(json.dumps(answer).encode())
    control.close()
    while held is not None:
        signal.pause()
    os._exit(0)
