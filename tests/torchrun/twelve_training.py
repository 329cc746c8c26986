"""A small training with real gloo. In the first round, at step 5, rank 2 breaks as the variable FAULT says."""

import os
import resource
import threading
import time
from ctypes import string_at
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Dataset

from understudy_torch import step

FAULT, RANK = os.environ["FAULT"], int(os.environ["RANK"])
IS_FIRST_ROUND = os.environ["UNDERSTUDY_ROUND"].endswith(".0")
FAULTY_RANK, FAULTY_STEP = 2, 5
GLOO_TIMEOUT_S = 4 if FAULT == "collective timeout" else 600


def is_due(fault: str, n: int = FAULTY_STEP) -> bool:
    return IS_FIRST_ROUND and (fault, n, RANK) == (FAULT, FAULTY_STEP, FAULTY_RANK)


class Batches(Dataset[torch.Tensor]):  # type: ignore[misc]  # torch is not in the environment of the checks
    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, n: int) -> torch.Tensor:
        if is_due("hang in a data loader", n):
            read_shard()
        return torch.ones(8)


def read_shard() -> None:
    threading.Event().wait()


def open_data() -> None:
    if is_due("hang before the first step"):
        threading.Event().wait()


def evaluate(n: int) -> None:
    if is_due("collective timeout", n):
        threading.Event().wait()


def compute_loss(n: int) -> None:
    is_everywhere = IS_FIRST_ROUND and FAULT == "exception on all ranks" and n == FAULTY_STEP
    if is_everywhere or is_due("exception on one rank", n):
        raise ValueError("loss is nan")
    if is_due("out of memory", n):
        allocate()
    if is_due("segmentation fault", n):
        string_at(0)


def allocate() -> None:
    """The kernel refuses it: the limit of the process is 64 MiB above what it has."""
    with open("/proc/self/statm") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (64 << 20), resource.RLIM_INFINITY))
    bytearray(1 << 30)


def average(batch: torch.Tensor, only_on_one_rank: dist.ProcessGroup, n: int) -> None:
    if FAULT == "hang at one place":  # rank 2 has chosen the group that no other rank chooses
        group = only_on_one_rank if is_due(FAULT, n) else None
        dist.all_reduce(batch, group=group)
        return
    if is_due("hang in a collective", n):
        dist.all_reduce(batch, group=only_on_one_rank)  # in a branch that no other rank takes
    dist.all_reduce(batch)


def main() -> None:
    open_data()
    timeout = timedelta(seconds=GLOO_TIMEOUT_S)
    dist.init_process_group("gloo", timeout=timeout)
    only_on_one_rank = dist.new_group(timeout=timeout)
    for n, batch in enumerate(DataLoader(Batches(), num_workers=1), 1):
        compute_loss(n)
        evaluate(n)
        average(batch, only_on_one_rank, n)
        step(n)
        time.sleep(0.05)


main()
