"""A process that saves or restores a state in GPU memory: `states.py WHAT BYTES`, with the memory of a rank. It writes
its facts to stdout, as JSON.

save       five saves, as a worker makes them
unpinned   the same without registered memory, with sums on the CPU: what pinned memory and sums on the GPU are worth
dcp        the same saves by torch.distributed.checkpoint, to /dev/shm
load       restores on the GPU, and compares with the saved state
load-cpu   restores on the CPU, and then copies to the GPU
overlap    products of matrices, alone, beside a copy to registered memory on another stream, and after such a copy
"""

import json
import mmap
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from understudy_torch import gpu_copies, snapshot

PARTS = 64  # of the large tensors
SAVES = 5
PRODUCTS = 600
SIDE = 8192  # of a matrix
MADV_POPULATE_WRITE = 23


def large(number: int, size: int) -> torch.Tensor:
    return torch.arange(size // PARTS // 4, dtype=torch.float32, device="cuda") + number


def odd() -> dict[str, torch.Tensor]:
    """Tensors whose memory differs from the bytes of a copy, or is no multiple of a word or a block."""
    torch.manual_seed(1)
    complex_ = torch.randn(7, dtype=torch.complex64).cuda()
    on_gpu = {
        "bf16": torch.randn(3, 5).to(torch.bfloat16),
        "fp8": torch.randn(70001).to(torch.float8_e4m3fn),
        "bool": torch.tensor([True, False, True]),
        "double": torch.randn(3, 7, dtype=torch.float64),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "two blocks and 5 bytes": torch.arange((1 << 17) + 5).to(torch.uint8),
        "parameter": torch.nn.Parameter(torch.randn(4)),
    }
    return {name: tensor.cuda() for name, tensor in on_gpu.items()} | {
        "complex": complex_,
        "conjugated": complex_.conj(),
        "negated": complex_.conj().imag,
        "transposed": torch.arange(6).cuda().view(2, 3).t(),
        "odd offset": torch.arange(100, dtype=torch.uint8).cuda()[3:],
        "on the CPU": torch.randn(5),
    }


def state(size: int) -> dict[str, Any]:
    return {"large": [large(number, size) for number in range(PARTS)], "odd": odd(), "step": 0}


def timed(work: Callable[[], object]) -> float:
    torch.cuda.synchronize()
    began = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - began


def save(size: int) -> dict[str, Any]:
    content = state(size)
    return {"seconds": [timed(partial(_saved, n, content)) for n in range(1, SAVES + 1)]}


def _saved(step: int, content: dict[str, Any]) -> None:
    assert snapshot.save(step, content)


def unpinned(size: int) -> dict[str, Any]:
    gpu_copies.has_sums = lambda tensor: False
    gpu_copies.PinnedMemory.prepare = lambda self, memory, offset, length: None  # type: ignore[method-assign]
    return save(size)


def dcp(size: int) -> dict[str, Any]:
    from torch.distributed import checkpoint

    content, folder = {"large": state(size)["large"]}, tempfile.mkdtemp(dir="/dev/shm")
    try:
        return {"seconds": [timed(lambda: checkpoint.save(content, checkpoint_id=folder)) for _ in range(SAVES)]}
    finally:
        shutil.rmtree(folder)


def load(size: int) -> dict[str, Any]:
    torch.ones(1, device="cuda")
    found: list[Any] = []
    seconds = timed(lambda: found.append(snapshot.load(device="cuda")))
    restored, expected = found[0], odd()
    wrong = [n for n in range(PARTS) if not torch.equal(restored["large"][n], large(n, size))]
    different = [name for name, x in expected.items() if not _same(restored["odd"][name], x)]
    return {"seconds": [seconds], "different": [*wrong, *different]}


def _same(found: torch.Tensor, expected: torch.Tensor) -> bool:
    place, wanted = ((x.device.type, x.dtype, x.shape) for x in (found, expected))
    return place == wanted and found.tolist() == expected.tolist()


def load_cpu(size: int) -> dict[str, Any]:
    torch.ones(1, device="cuda")
    return {"seconds": [timed(lambda: [x.cuda() for x in _loaded()["large"]])]}


def _loaded() -> Any:
    return snapshot.load()


def overlap(size: int) -> dict[str, Any]:
    memory = mmap.mmap(-1, size)
    pinned = gpu_copies.PinnedMemory(print, gpu_copies.of_torch, gpu_copies.run_a_kernel)
    memory.madvise(MADV_POPULATE_WRITE)
    registered_s = timed(lambda: pinned.prepare(memory, 0, size))
    source = torch.ones(size // 4, device="cuda")
    target = torch.frombuffer(memory, dtype=torch.float32)
    left, right = (torch.randn(SIDE, SIDE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    other = torch.cuda.Stream()

    def products() -> None:
        for _ in range(PRODUCTS):
            torch.matmul(left, right)

    def beside() -> None:
        with torch.cuda.stream(other):
            target.copy_(source, non_blocking=True)
        products()

    def after() -> None:
        target.copy_(source)
        products()

    products()
    works = {"alone": products, "beside": beside, "after": after}
    return {"seconds": [registered_s]} | {name: [timed(work) for _ in range(SAVES)] for name, work in works.items()}


WORK = {"save": save, "unpinned": unpinned, "dcp": dcp, "load": load, "load-cpu": load_cpu, "overlap": overlap}

if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    print(json.dumps(WORK[sys.argv[1]](int(sys.argv[2]))), flush=True)
