"""The training of the benchmark: four ranks, gloo, DistributedDataParallel, a model that needs almost no CPU time.

Each rank writes `EVENT RANK PID TIME` into the file BENCH_REPORTS: at its first all-reduce and at its first step. It
ends when the file BENCH_REPORTS.end exists. TIME is time.monotonic(), which all processes share. The script uses only
torchrun's contract, so every system can run it. With BENCH_SAVE_S, a rank that gets SIGTERM or loses a peer saves for
that time before it ends. With BENCH_HEARTBEATS, each step sends NVRx's rank monitor a heartbeat.
"""

import os
import signal
import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

try:
    from understudy_torch import step as report
except ImportError:

    def report(n: int, total: int | None = None) -> None:
        """The peers get no reports of steps."""


PAUSE_S = 0.02
REPORTS = os.environ["BENCH_REPORTS"]
SAVE_S = float(os.environ["BENCH_SAVE_S"])


def write_report(event: str) -> None:
    line = f"{event} {os.environ['RANK']} {os.getpid()} {time.monotonic():.6f}\n"
    fd = os.open(REPORTS, os.O_WRONLY | os.O_APPEND)
    os.write(fd, line.encode())
    os.close(fd)


def save(*_: object) -> None:
    """Save once: SIGTERM may arrive during a save."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(SAVE_S)
    os._exit(1)


def main() -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    if SAVE_S:
        signal.signal(signal.SIGTERM, save)
    try:
        train()
    except RuntimeError:
        if SAVE_S:
            save()
        raise
    dist.destroy_process_group()


def heartbeats() -> Callable[[], None]:
    if "BENCH_HEARTBEATS" not in os.environ:
        return lambda: None
    from nvidia_resiliency_ext.fault_tolerance import RankMonitorClient

    client = RankMonitorClient()
    client.init_workload_monitoring()
    send: Callable[[], None] = client.send_heartbeat
    return send


def train() -> None:
    dist.all_reduce(torch.ones(1))
    write_report("all_reduce")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    number = 0
    ended = torch.zeros(1)
    send_heartbeat = heartbeats()
    while not ended.item():
        number += 1
        optimizer.zero_grad()
        model(torch.randn(8, 64)).square().mean().backward()
        optimizer.step()
        report(number)
        send_heartbeat()
        if number == 1:
            write_report("step")
        ended = torch.tensor([float(os.path.exists(f"{REPORTS}.end"))])
        dist.all_reduce(ended)
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main()
