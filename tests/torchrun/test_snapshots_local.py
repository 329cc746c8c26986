"""Snapshots in local mode: forked and new workers, and those of a torchrun, restore the newest common step."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.torch_install import torch_version
from tests.torchrun.job import LIMIT_S
from tests.torchrun.local_run import Start, kill, local_runs
from tests.unit.launcher.fake_sidecar import wait_for

pytestmark = pytest.mark.timeout(1200)

#: Appends a line for the start of each round, and for each step. The state has the sum of all steps. The file "pause"
#: has the seconds between two steps.
SCRIPT = """
import os, time
import torch, torch.distributed as dist
from understudy_torch import snapshot, step
dist.init_process_group("gloo")
state = snapshot.load()
origin = "storage:" + snapshot.reason() if state is None else "memory"
state = state or {"step": 0, "sum": torch.zeros(1000)}
notes = open(f"{os.environ['HERE']}/notes-{os.environ['RANK']}", "a", buffering=1)
def note(event):
    number = os.environ["UNDERSTUDY_ROUND"].split(".")[2]
    notes.write(f"{event}|{number}|{state['step']}|{state['sum'].unique().tolist()}|{origin}\\n")
pause = float(open(path).read()) if os.path.exists(path := os.environ["HERE"] + "/pause") else 0.05
note("start")
while True:
    end = torch.tensor([float(os.path.exists(os.environ["HERE"] + "/end"))])
    dist.all_reduce(end)
    state = {"step": state["step"] + 1, "sum": state["sum"] + state["step"] + 1}
    note("step")
    assert snapshot.save(state["step"], state)
    step(state["step"])
    if end.item():
        break
    time.sleep(pause)
dist.destroy_process_group()
"""

#: As SCRIPT, with FSDP2: a model and its optimizer in shards. A note has the loss of the step in place of the state.
FSDP_SCRIPT = """
import os, time
import torch, torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
from understudy_torch import snapshot, step
dist.init_process_group("gloo")
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
fully_shard(model, mesh=dist.init_device_mesh("cpu", (dist.get_world_size(),)))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
done = 0
def state():
    of_model, of_optimizer = get_state_dict(model, optimizer)
    return {"model": of_model, "optimizer": of_optimizer, "step": done}
restored = snapshot.load(like=state())
origin = "storage" if restored is None else "memory"
if restored is not None:
    set_state_dict(model, optimizer, model_state_dict=restored["model"], optim_state_dict=restored["optimizer"])
    done = restored["step"]
notes = open(f"{os.environ['HERE']}/notes-{os.environ['RANK']}", "a", buffering=1)
number = os.environ["UNDERSTUDY_ROUND"].split(".")[2]
while True:
    torch.manual_seed(done)
    loss = (model(torch.randn(4, 8)) - 1).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    done += 1
    notes.write(f"step|{number}|{done}|{loss.item()!r}|{origin}\\n")
    assert snapshot.save(done, state())
    step(done)
    end = torch.tensor([float(os.path.exists(os.environ["HERE"] + "/end"))])
    dist.all_reduce(end)
    if end.item():
        break
    time.sleep(0.05)
dist.destroy_process_group()
"""


#: As FSDP_SCRIPT, by means of torch.distributed.checkpoint. The folder has no checkpoint.
DCP_SCRIPT = (
    FSDP_SCRIPT.replace(
        "from understudy_torch import snapshot, step",
        "from torch.distributed import checkpoint\n"
        "from understudy_torch import step\n"
        "from understudy_torch.dcp import SnapshotReader, SnapshotWriter",
    )
    .replace(
        "restored = snapshot.load(like=state())",
        "reader, restored = SnapshotReader(checkpoint.FileSystemReader('none')), state()\n"
        "if reader.step is None:\n"
        "    restored = None\n"
        "else:\n"
        "    checkpoint.load(restored, storage_reader=reader)",
    )
    .replace(
        "    assert snapshot.save(done, state())",
        "    writer = SnapshotWriter(done)\n"
        "    checkpoint.save(state(), storage_writer=writer)\n"
        "    assert writer.has_stored",
    )
)


@pytest.fixture
def start(tmp_path: Path, torch: Path) -> Iterator[Start]:
    """Two members of two workers, with memory for snapshots."""
    with local_runs(tmp_path, torch, SCRIPT, "--nodes", "2", "--nproc", "2", "--snapshots", "1Mi") as begin:
        yield begin


def notes(folder: Path, number: int, steps: int, ranks: int = 4) -> list[list[list[str]]]:
    """By rank: the fields of the notes of a round, once each rank has made so many steps in it."""

    def found() -> list[list[list[str]]]:
        paths = [folder / f"notes-{rank}" for rank in range(ranks)]
        texts = [path.read_text() if path.exists() else "" for path in paths]
        fields = [[line.split("|") for line in text.split("\n")[:-1]] for text in texts]
        return [[each for each in of_rank if each[1] == str(number)] for of_rank in fields]

    wait_for(lambda: all(len(of_rank) > steps for of_rank in found()), lambda: (folder / "log").read_text(), LIMIT_S)
    return found()


@pytest.mark.parametrize(
    "words",
    [
        ("--", sys.executable, "-u", "{train}"),
        pytest.param(("--no-zygote", "--", sys.executable, "-u", "{train}"), marks=pytest.mark.nightly),
        ("--", "torchrun", "--nproc-per-node", "2", "{train}"),
    ],
    ids=["forks", "new processes", "torchrun"],
)
def test_a_killed_worker_costs_at_most_one_step(start: Start, tmp_path: Path, words: tuple[str, ...]) -> None:
    # given a training of four ranks, without copies: a copy that lasts longer than a step can cost more
    run = start("--spares", "0", "--snapshot-copies", "0", *words)
    first = notes(tmp_path, 0, 4)
    assert {of_rank[0][4] for of_rank in first} == {"storage:no pod has a snapshot"}
    # when a worker is killed
    kill("3")
    # then all ranks restore the same step, at most one before the newest, with its content
    second = notes(tmp_path, 1, 4)
    newest = max(int(of_rank[-1][2]) for of_rank in notes(tmp_path, 0, 4))
    ((step, content, origin),) = {(of_rank[0][2], of_rank[0][3], of_rank[0][4]) for of_rank in second}
    assert int(step) in (newest - 1, newest)
    assert (content, origin) == (f"[{sum(range(int(step) + 1)):.1f}]", "memory")
    # and the job succeeds
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0


@pytest.mark.skipif(torch_version().startswith("2.6."), reason="torch 2.6 has no fully_shard without a GPU")
@pytest.mark.parametrize(
    "script",
    [pytest.param(FSDP_SCRIPT, marks=pytest.mark.nightly), DCP_SCRIPT],
    ids=["load(like)", "torch.distributed.checkpoint"],
)
def test_fsdp2_continues_with_the_losses_of_an_undisturbed_training(
    tmp_path: Path, torch: Path, monkeypatch: pytest.MonkeyPatch, script: str
) -> None:
    # given a training with FSDP2 that keeps the shards of its model and of its optimizer
    options = ("--nodes", "2", "--nproc", "1", "--snapshots", "1Mi", "--spares", "1")
    with local_runs(tmp_path, torch, script, *options) as start:
        run = start("--", sys.executable, "-u", "{train}")
        notes(tmp_path, 0, 10, ranks=2)
        # when a worker is killed, and then all processes of a member
        kill("1")
        notes(tmp_path, 1, 10, ranks=2)
        kill("node-0")
        last = notes(tmp_path, 2, 10, ranks=2)
        (tmp_path / "end").touch()
        assert run.wait(LIMIT_S) == 0
    # then no round begins at the first step, and each loss is that of one process without a fault
    assert {of_rank[0][4] for of_rank in last} == {"memory"}
    monkeypatch.syspath_prepend(torch)
    rounds = [notes(tmp_path, number, 0, ranks=2) for number in range(3)]
    expected = undisturbed_losses(max(int(x[2]) for of_rank in rounds[-1] for x in of_rank))
    for number, of_ranks in enumerate(rounds):
        for of_rank in of_ranks:
            for _, _, step, loss, _ in of_rank:
                assert float(loss) == pytest.approx(expected[int(step)], rel=1e-5), (number, step)


def undisturbed_losses(steps: int) -> dict[int, float]:
    """Of FSDP_SCRIPT by step, made by this process: all ranks have the same batches."""
    import torch
    from torch.distributed.checkpoint.state_dict import get_state_dict

    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    get_state_dict(model, optimizer)  # creates the state of the optimizer, as the script does before its first step
    losses = {}
    for step in range(steps):
        torch.manual_seed(step)
        loss = (model(torch.randn(4, 8)) - 1).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses[step + 1] = loss.item()
    return losses


def test_a_lost_member_costs_at_most_two_steps(start: Start, tmp_path: Path) -> None:
    # given a spare, and steps that last longer than a copy does, on a busy machine too
    (tmp_path / "pause").write_text("0.5")
    run = start("--spares", "1", "--", sys.executable, "-u", "{train}")
    notes(tmp_path, 0, 6)
    # when all processes of a member are killed
    kill("node-1")
    # then all ranks restore the same step, those of the spare from a copy
    second = notes(tmp_path, 1, 4)
    newest = max(int(of_rank[-1][2]) for of_rank in notes(tmp_path, 0, 4))
    ((step, content, origin),) = {(of_rank[0][2], of_rank[0][3], of_rank[0][4]) for of_rank in second}
    assert newest - 2 <= int(step) <= newest
    assert (content, origin) == (f"[{sum(range(int(step) + 1)):.1f}]", "memory")
    # and each later step has the content of an undisturbed run
    assert {(x[2], x[3]) for of_rank in second for x in of_rank} <= {
        (str(n), f"[{sum(range(n + 1)):.1f}]") for n in range(int(step), int(step) + 2000)
    }
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0


def test_without_copies_a_lost_member_leads_to_storage(start: Start, tmp_path: Path) -> None:
    run = start("--spares", "1", "--snapshot-copies", "0", "--", sys.executable, "-u", "{train}")
    notes(tmp_path, 0, 2)
    kill("node-1")
    second = notes(tmp_path, 1, 1)
    (origin,) = {of_rank[0][4] for of_rank in second}
    assert origin.endswith(" has no snapshot of its ranks")
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0


def test_without_copies_a_lost_member_leads_to_the_newest_snapshot_on_storage(start: Start, tmp_path: Path) -> None:
    # given a training that writes the snapshot of each fifth step to a folder
    folder = tmp_path / "snapshots"
    options = ("--snapshot-copies", "0", "--snapshot-path", str(folder), "--snapshot-path-every", "5")
    run = start("--spares", "1", *options, "--", sys.executable, "-u", "{train}")
    first = notes(tmp_path, 0, 12)
    assert {of_rank[0][4] for of_rank in first} == {f"storage:no pod has a snapshot; {folder} has no snapshot"}
    # when all processes of a member are killed
    kill("node-1")
    # then all ranks restore the same one of these steps, with its content
    second = notes(tmp_path, 1, 1)
    newest = max(int(of_rank[-1][2]) for of_rank in notes(tmp_path, 0, 12))
    ((step, content, origin),) = {(of_rank[0][2], of_rank[0][3], of_rank[0][4]) for of_rank in second}
    assert int(step) % 5 == 0
    assert newest - 15 <= int(step) <= newest
    assert (content, origin) == (f"[{sum(range(int(step) + 1)):.1f}]", "memory")
    (tmp_path / "end").touch()
    assert run.wait(LIMIT_S) == 0
