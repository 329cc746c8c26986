"""A training whose state gets wrong: after step POISONED_AT of the first round, rank 1 fails in each step.

Without a snapshot it starts at step 0, because it has no checkpoints. Each rank reports its steps as examples/ddp does.
"""

import json
import os
import socket
import time
from pathlib import Path

import torch
import torch.distributed as dist

from understudy_torch import snapshot, step

POISONED_AT = 60  # until then, all pods have copies of snapshots
RANK, TOKEN = int(os.environ["RANK"]), os.environ["UNDERSTUDY_ROUND"]
REPORT = Path(__file__).with_name(f"report.{TOKEN}.{RANK}.jsonl")


def report(event: str, number: int) -> None:
    line = {"event": event, "step": number, "loss": None, "round": TOKEN, "time": time.time()}
    with REPORT.open("a") as file:
        file.write(json.dumps({**line, "host": socket.gethostname()}) + "\n")


dist.init_process_group("gloo")
state = snapshot.load() or {"step": 0, "poisoned": False}
number = state["step"]
is_first_round = number == 0 and not list(REPORT.parent.glob("poisoned"))
dist.barrier()
report("resumed", number)
while True:
    if state["poisoned"] and RANK == 1:
        raise ValueError("the loss is not a number")
    dist.all_reduce(torch.ones(1))
    number += 1
    state = {"step": number, "poisoned": state["poisoned"] or (is_first_round and number == POISONED_AT)}
    if state["poisoned"]:
        REPORT.with_name("poisoned").touch()
    snapshot.save(number, state)
    report("step", number)
    step(number)
    time.sleep(0.2)
