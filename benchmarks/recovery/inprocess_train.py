"""train.py under NVRx's in-process restart, as its usage guide wraps a training: `inprocess.Wrapper` with its defaults.

Each iteration has a separate process group over a prefix of one store. Ranks beyond BENCH_ACTIVE are in reserve. The
wrapper aborts NCCL's collectives and not gloo's, so these end by their own timeout.
"""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from nvidia_resiliency_ext import inprocess

from benchmarks.recovery import train

#: Timeout of a collective, which takes about 20 ms here. gloo's default is 30 minutes.
COLLECTIVE_S = 5.0


@inprocess.Wrapper(  # type: ignore[untyped-decorator]
    rank_assignment=inprocess.Compose(
        inprocess.rank_assignment.MaxActiveWorldSize(int(os.environ["BENCH_ACTIVE"])),
        inprocess.rank_assignment.ShiftRanks(),
    )
)
def run(base_store: dist.Store, call_wrapper: inprocess.CallWrapper = None) -> None:
    store = dist.PrefixStore(f"train/{call_wrapper.iteration}", base_store)
    rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    timeout = timedelta(seconds=COLLECTIVE_S)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size, timeout=timeout)
    try:
        train.train()
    finally:
        dist.destroy_process_group()


def main() -> None:
    torch.set_num_threads(1)
    # At the address of the wrapper's own store: the second store is a client of the first one.
    run(
        inprocess.store.TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            multi_tenant=True,
            wait_for_workers=False,
        )
    )


if __name__ == "__main__":
    main()
