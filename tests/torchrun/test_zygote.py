"""A script that uses torch prints the same in a fork as in a process of its own.

One zygote, because each import of torch takes seconds: it runs the content of train.py at the time of the fork.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import understudy_torch
from tests.cluster import Cluster
from tests.ports import free_port
from tests.unit.zygote.forking import Forking
from understudy_launcher import events as e
from understudy_launcher.step_page import StepFiles
from understudy_launcher.zygote import ForkRequest

pytestmark = pytest.mark.timeout(600)

#: Spawned processes import torch, two at once.
IMPORT_S = 60.0
PRELOAD = ("torch", "torch.distributed", "torch._dynamo", "numpy")
HEAD = "import os, torch\nimport torch.multiprocessing as mp\nfrom torch import nn\n"

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
    loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=os.environ["METHOD"])
    print([batch.tolist() for batch in loader])
"""
)
SPAWN = (
    HEAD
    + """
def work(rank, queue):
    queue.put((rank, float(torch.ones(256, 256).mm(torch.ones(256, 256)).sum())))

if __name__ == "__main__":
    context = mp.get_context(os.environ["METHOD"])
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

RESUMES = (
    HEAD
    + """
model = nn.Linear(4, 2)
optimizer = getattr(torch.optim, os.environ["OPTIMIZER"])(model.parameters(), lr=0.1)
if os.environ["OPTIMIZER"] == "Adam":
    state = {"step": torch.tensor(10.0), "exp_avg": torch.zeros(1), "exp_avg_sq": torch.zeros(1)}
    for weights in model.parameters():
        optimizer.state[weights] = {name: value + torch.zeros_like(weights) if name != "step" else value.clone()
                                    for name, value in state.items()}
schedule = torch.optim.lr_scheduler.LinearLR(optimizer)
for _ in range(5):
    for _ in range(2):  # two batches a step
        model(torch.ones(1, 4)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    schedule.step()
with torch.no_grad():
    model(torch.ones(1, 4))
"""
)
COMPILED = (
    HEAD
    + """
weights = nn.Parameter(torch.tensor(4.0))
optimizer = torch.optim.SGD([weights], lr=torch.tensor(1.0), foreach=False)
weights.grad = torch.tensor(1.0)
step = torch.compile(optimizer.step, backend="eager")
step()
step()
from torch._dynamo.utils import counters
print(weights.item(), [reason.partition("\\n")[0] for reason in counters["graph_break"]])
"""
)


@pytest.fixture(scope="module")
def zygote(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Forking]:
    """A zygote for train.py in the current folder."""
    with contextlib.chdir(tmp_path_factory.mktemp("zygote")):
        Path("train.py").touch()
        path = f"{Cluster().torch_path}:{Path(understudy_torch.__file__).parents[1]}"
        env = {"PYTHONPATH": path, "OMP_NUM_THREADS": "2", "GLOO_SOCKET_IFNAME": "lo"}
        forking = Forking(PYTHON, "train.py", preload=PRELOAD, env=env, limit_s=IMPORT_S)
        assert isinstance(forking.start, e.ZygoteReady), forking.start
        yield forking
        forking.close()


def at_night(method: str) -> object:
    return pytest.param(method, marks=pytest.mark.nightly)


def printed(zygote: Forking, script: str, **env: str) -> str:
    """The output of a fork that runs the script and exits 0."""
    Path("train.py").write_text(script)
    run = zygote.run(**env)
    assert run.code == 0, run.err
    return run.out


@pytest.mark.parametrize("method", ["fork", at_night("spawn"), at_night("forkserver")])
def test_a_data_loader_with_workers_runs_in_a_fork(zygote: Forking, method: str) -> None:
    assert printed(zygote, LOADER, METHOD=method) == "[[0, 1, 4, 9], [16, 25, 36, 49]]\n"


@pytest.mark.parametrize("method", [at_night("fork"), "spawn", at_night("forkserver")])
def test_processes_of_torch_multiprocessing_run_in_a_fork(zygote: Forking, method: str) -> None:
    assert printed(zygote, SPAWN, METHOD=method) == "[(0, 16777216.0), (1, 16777216.0)]\n[0, 0]\n"


def test_names_defined_in_main_can_be_saved_and_compiled(zygote: Forking) -> None:
    assert printed(zygote, PICKLED) == "Model\ntorch.Size([1, 2]) 2\n"


def test_a_parallel_computation_does_not_hang(zygote: Forking) -> None:
    assert printed(zygote, PARALLEL) == "8589934592.0\n"


def test_each_fork_has_random_numbers_of_its_own(zygote: Forking) -> None:
    seen = {number for _ in range(3) for number in printed(zygote, RANDOM).split()}
    assert len(seen) == 9


@pytest.mark.parametrize(("optimizer", "is_counted"), [("SGD", True), ("Adam", False)])
def test_the_steps_of_an_optimizer_are_reported(zygote: Forking, optimizer: str, is_counted: bool) -> None:
    # given a script that resumes after 10 steps, with a learning rate schedule, and makes 5 more
    Path("train.py").write_text(RESUMES)
    files = StepFiles(".")
    (pid,) = zygote.zygote.fork({0: ForkRequest({"OPTIMIZER": optimizer}, files.inherited)}).values()
    assert zygote.code(pid) == 0, zygote.said()
    # then its steps are known, with Adam's own number, or counted
    seen = files.page.read()
    files.given()
    files.close()
    assert seen is not None
    assert (seen.calls, seen.step, seen.is_counted) == (5, 5 if is_counted else 15, is_counted)


def test_the_hook_does_not_interrupt_the_graph_of_a_compiled_optimizer(zygote: Forking) -> None:
    # torch itself has one graph_break(), and each version describes it in its own words
    assert re.fullmatch(r"2\.0 \[[^,]*graph_break[^,]*\]\n", printed(zygote, COMPILED))


def test_a_process_group_over_gloo_runs_in_a_fork(zygote: Forking) -> None:
    for _ in range(2):
        assert printed(zygote, STORE, PORT=str(free_port())) == "[1.0, 1.0] 1\n"


#: torch was installed for this version.
PYTHON = sys.executable
