"""A script that uses torch finds in a fork what it would find in a process of its own."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cluster import Cluster
from tests.unit.zygote.forking import Forking, fresh
from understudy_launcher import events as e

pytestmark = pytest.mark.timeout(200)

#: Processes that are spawned import torch, two at once.
IMPORT_S = 60.0
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "numpy")
HEAD = "import os, sys, torch\nimport torch.multiprocessing as mp\nfrom torch import nn\n"

LOADER = (
    HEAD
    + """
from torch.utils.data import DataLoader, Dataset

class Squares(Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, index):
        return torch.tensor(index * index)

if __name__ == "__main__":
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=sys.argv[1])
    print([batch.tolist() for batch in loader])
"""
)
SPAWN = (
    HEAD
    + """
def work(rank, queue):
    queue.put((rank, float(torch.ones(256, 256).mm(torch.ones(256, 256)).sum())))

if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    queue = context.SimpleQueue()
    started = [context.Process(target=work, args=(rank, queue)) for rank in range(2)]
    for process in started:
        process.start()
    print(sorted(queue.get() for _ in started))
    for process in started:
        process.join()
    print([process.exitcode for process in started])
"""
)
PICKLED = (
    HEAD
    + """
import io
class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

file = io.BytesIO()
torch.save(Model(), file)
file.seek(0)
print(type(torch.load(file, weights_only=False)).__qualname__)
compiled = torch.compile(nn.Linear(4, 2), backend="eager")
print(compiled(torch.ones(1, 4)).shape, torch.get_num_threads())
"""
)
PARALLEL = HEAD + "print(float(torch.ones(2048, 2048).mm(torch.ones(2048, 2048)).sum()))\n"
RANDOM = HEAD + "import numpy\nprint(torch.rand(1).item(), numpy.random.rand(), torch.initial_seed())\n"
STORE = (
    HEAD
    + """
import torch.distributed as dist
dist.init_process_group("gloo", init_method="tcp://127.0.0.1:" + os.environ["PORT"], rank=0, world_size=1)
tensor = torch.ones(2)
dist.all_reduce(tensor)
print(tensor.tolist(), dist.get_world_size())
dist.destroy_process_group()
"""
)

Make = Callable[..., Forking]


@pytest.fixture
def env() -> dict[str, str]:
    return {"PYTHONPATH": str(Cluster().torch_path), "OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo"}


@pytest.fixture
def forking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> Iterator[Make]:
    """Makes zygotes for a script."""
    monkeypatch.chdir(tmp_path)
    made: list[Forking] = []

    def make(script: str, *arguments: str) -> Forking:
        Path("train.py").write_text(script)
        made.append(Forking(PYTHON, "train.py", *arguments, preload=PRELOAD, env=env, limit_s=IMPORT_S))
        assert isinstance(made[-1].start, e.ZygoteReady), made[-1].start
        return made[-1]

    yield make
    for one in made:
        one.close()


def check(forking: Make, env: dict[str, str], script: str, *arguments: str, **of_worker: str) -> None:
    """A fork says what a fresh process says."""
    zygote = forking(script, *arguments)
    expected = fresh(PYTHON, "train.py", *arguments, env={**env, **of_worker})
    assert expected.code == 0, expected.err
    seen = zygote.run(**of_worker)
    assert (seen.out, seen.code) == (expected.out, 0), seen.err


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_a_data_loader_with_workers(forking: Make, env: dict[str, str], method: str) -> None:
    check(forking, env, LOADER, method)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_processes_of_torch_multiprocessing(forking: Make, env: dict[str, str], method: str) -> None:
    check(forking, env, SPAWN, method)


def test_what_is_defined_in_main_can_be_saved_and_compiled(forking: Make, env: dict[str, str]) -> None:
    check(forking, env, PICKLED)


def test_a_parallel_computation_does_not_hang(forking: Make, env: dict[str, str]) -> None:
    check(forking, env, PARALLEL)


def test_each_fork_has_random_numbers_of_its_own(forking: Make) -> None:
    zygote = forking(RANDOM)
    seen = {number for _ in range(3) for number in zygote.run().out.split()}
    assert len(seen) == 9


def test_a_process_group_over_gloo(forking: Make) -> None:
    zygote = forking(STORE)
    seen = [zygote.run(PORT=str(free_port())) for _ in range(2)]
    assert [(run.out, run.code) for run in seen] == [("[1.0, 1.0] 1\n", 0)] * 2, seen[0].err


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


#: torch was installed for this version.
PYTHON = sys.executable
