"""The soak's worker: examples/ddp/train.py, with observations and a fault for the soak.

It runs in the pods, from the shared folder. First it reports its start: a rank that starts twice in a round would be
two workers for one place. Then a thread waits for the soak's request to allocate memory until the kernel ends it.
"""

import json
import os
import runpy
import socket
import sys
import threading
import time
from pathlib import Path

SCRIPT = "/example/train.py"
FOLDER = Path(__file__).parent
POLL_S = 0.5
CHUNK = b"x" * (32 * 1024 * 1024)


def report_start() -> None:
    start = {
        "round": os.environ["UNDERSTUDY_ROUND"],
        "rank": int(os.environ["RANK"]),
        "host": socket.gethostname(),
        "pid": os.getpid(),
    }
    descriptor = os.open(FOLDER / "starts.jsonl", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        os.write(descriptor, json.dumps(start).encode() + b"\n")
    finally:
        os.close(descriptor)


def allocate_on_request() -> None:
    request = FOLDER / f"allocate-{socket.gethostname()}"
    while not request.exists():
        time.sleep(POLL_S)
    request.unlink()  # the worker that follows this one must not see it
    chunks = []
    while True:
        chunks.append(bytearray(CHUNK))


report_start()
if os.environ.get("LOCAL_RANK", "0") == "0":
    threading.Thread(target=allocate_on_request, daemon=True).start()
sys.argv[0] = SCRIPT
sys.path.insert(0, str(Path(SCRIPT).parent))
runpy.run_path(SCRIPT, run_name="__main__")
