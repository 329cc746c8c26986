"""The worker of the GPU suite: `training.py DEVICE SHARE`. It takes that share of the device's free memory, computes on
it, writes a line with its facts to $HERE/facts-ROUND, and waits. DEVICE is cuda or cpu; on the CPU it takes a few MB.
"""

import json
import os
import sys
import time
from typing import Any

import torch
import torch.distributed as dist

CPU_BYTES = 64 << 20


def main(kind: str, share: float) -> None:
    began = time.monotonic()
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    facts: dict[str, Any] = {"rank": rank, "pid": os.getpid(), "parent": os.getppid()}
    if kind == "cuda":
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
        torch.cuda.set_device(device)
        free, total = torch.cuda.mem_get_info()
        facts |= {"free": free, "total": total}
    else:
        device, free = torch.device("cpu"), CPU_BYTES
    held = torch.ones(int(free * share) // 4, dtype=torch.float32, device=device)
    facts |= {"bytes": held.numel() * 4, "sum": float(held[:1000].sum()), "allocated_at": time.time()}
    backend = "nccl" if kind == "cuda" and world == 1 else "gloo"  # NCCL refuses two ranks on one device
    dist.init_process_group(backend)
    answer = torch.ones(1, device=device if backend == "nccl" else "cpu")
    dist.all_reduce(answer)
    facts |= {"backend": backend, "reduced": float(answer), "seconds": time.monotonic() - began}
    if backend == "nccl":
        recorder = getattr(torch._C._distributed_c10d, "_dump_nccl_trace_json", None)
        trace = b"{}" if recorder is None else recorder()
        facts["recorded"] = len(json.loads(trace).get("entries", []))
    with open(f"{os.environ['HERE']}/facts-{os.environ['UNDERSTUDY_ROUND'].rpartition('.')[2]}", "a") as file:
        file.write(json.dumps(facts) + "\n")
    time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
