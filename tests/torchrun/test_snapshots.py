"""snapshot.save() and load() with real torch: all kinds of states, kills at any instant, damage, and limits.

The test plays the launcher with its real memory; the workers are forks of the test.
"""

from __future__ import annotations

import math
import os
import pickle
import random
import select
import signal
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.snapshot_rounds import Rounds, become_worker, begin_worker, token
from understudy_protocol import snapshot_slots
from understudy_protocol.snapshots import SavedStep
from understudy_torch import gpu_copies, snapshot

pytestmark = pytest.mark.timeout(600)

PAGE, MAGIC = 4096, 0x756E64736E617031
MIB = 1 << 20
KILLS = 200
LIMIT_S = 20.0
FLIPS = 50


@pytest.fixture(scope="module", autouse=True)
def with_torch(torch: Path) -> None:
    sys.path.append(str(torch))


@pytest.fixture
def rounds() -> Iterator[Rounds]:
    made = Rounds(MIB)
    made.next()
    yield made
    made.close()


@pytest.fixture
def worker(rounds: Rounds, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Makes this process the worker of the newest round, as after its start."""

    def begin() -> None:
        begin_worker(rounds, monkeypatch)

    begin()
    return begin


def choose_next(rounds: Rounds, worker: Callable[[], None], step: int) -> None:
    """The next round begins, and restores this step of the round before."""
    saved = SavedStep(token(rounds.number), step)
    assert saved in rounds.next()
    rounds.choose(saved)
    worker()


def restored(rounds: Rounds, worker: Callable[[], None], step: int) -> Any:
    """What the next round loads, if this step of the round before is chosen."""
    choose_next(rounds, worker, step)
    return snapshot.load()


def test_a_state_of_all_kinds_of_values_is_restored(rounds: Rounds, worker: Callable[[], None]) -> None:
    import torch

    torch.manual_seed(1)
    state = {
        "bf16": torch.randn(3, 5).to(torch.bfloat16),
        "bool": torch.tensor([True, False, True]),
        "complex": torch.randn(2, dtype=torch.complex64),
        "conjugated": torch.randn(2, dtype=torch.complex64).conj(),
        "empty": torch.empty(0, 3),
        "scalar": torch.tensor(7),
        "transposed": torch.arange(6).view(2, 3).t(),
        "odd offset": torch.arange(10, dtype=torch.uint8)[3:],
        "parameter": torch.nn.Parameter(torch.randn(4)),
        "nested": [1, (2.5, None, "text", b"bytes"), {"deep": [torch.ones(2), True]}, {3: "a number as key"}],
        "size": torch.Size([1, 2]),
        "dtype": torch.float16,
    }
    assert snapshot.save(7, state)
    found = restored(rounds, worker, 7)
    assert snapshot.reason() == ""
    assert list(found) == list(state)
    for name, value in state.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype
            assert found[name].shape == value.shape
            assert torch.equal(found[name], value.detach()), name
    assert torch.equal(found["nested"][2]["deep"][0], torch.ones(2))
    assert found["nested"][1] == (2.5, None, "text", b"bytes")
    assert found["nested"][3] == {3: "a number as key"}
    assert (found["size"], found["dtype"]) == (torch.Size([1, 2]), torch.float16)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9, 1 << 16, (1 << 16) + 1, (1 << 17) + 8, (1 << 17) + 13])
@pytest.mark.parametrize("dtype", ["uint8", "bfloat16", "float32", "complex64", "bool"])
def test_sums_as_on_a_gpu_are_those_of_the_copy(dtype: str, count: int) -> None:
    import torch

    torch.manual_seed(count)
    tensor = torch.randint(-100, 100, (count,)).to(getattr(torch, dtype))
    assert gpu_copies.device_sums(tensor) == snapshot.block_sums(tensor)


def test_what_was_saved_on_the_cpu_is_restored_there_with_each_device(
    rounds: Rounds, worker: Callable[[], None]
) -> None:
    import torch

    assert snapshot.save(7, {"a": torch.ones(3), "b": torch.zeros(2)})
    choose_next(rounds, worker, 7)
    found = snapshot.load(device="cuda") or {}
    assert [(x.device.type, x.tolist()) for x in found.values()] == [("cpu", [1.0, 1.0, 1.0]), ("cpu", [0.0, 0.0])]


@pytest.mark.parametrize("allowed", [[], [bytes]])
def test_bytes_of_no_length_are_restored(rounds: Rounds, worker: Callable[[], None], allowed: list[type]) -> None:
    import torch

    state = {"text": "", "bytes": b"", b"": [b"", (b"",)]}
    assert snapshot.save(7, state)
    with torch.serialization.safe_globals(allowed):
        assert restored(rounds, worker, 7) == state
        # and the script's own torch.load allows what it has allowed before
        assert (bytes in torch.serialization.get_safe_globals()) == bool(allowed)


def test_tensors_are_restored_on_the_cpu_with_each_default_device(rounds: Rounds, worker: Callable[[], None]) -> None:
    import torch

    assert snapshot.save(7, {"a": torch.tensor([1.0, 2.0]), "empty": torch.zeros(0)})
    choose_next(rounds, worker, 7)
    # when a script restores where it creates its model on another device
    with torch.device("meta"):
        found = snapshot.load()
        assert snapshot.save(8, found)
    assert found is not None
    assert (found["a"].tolist(), found["empty"].device.type) == ([1.0, 2.0], "cpu")


def test_a_model_and_its_optimizer_continue_as_if_undisturbed(rounds: Rounds, worker: Callable[[], None]) -> None:
    import torch

    def made() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        torch.manual_seed(1)
        model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.1)

    def losses(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range, save: bool) -> list[float]:
        found = []
        for step in steps:
            loss = model(torch.full((4, 8), step / 10.0)).square().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            found.append(loss.item())
            if save:
                assert snapshot.save(step, {"model": model.state_dict(), "optimizer": optimizer.state_dict()})
        return found

    undisturbed = losses(*made(), range(10), save=False)
    first = losses(*made(), range(6), save=True)
    state = restored(rounds, worker, 5)
    model, optimizer = made()
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    assert first + losses(model, optimizer, range(6, 10), save=False) == undisturbed


@pytest.fixture
def of_two_ranks() -> Iterator[Any]:
    """This process is rank 1 of 2, without the other one: a mesh for DTensors whose collectives do nothing."""
    import torch.distributed
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", rank=1, world_size=2, store=FakeStore())
    yield torch.distributed.init_device_mesh("cpu", (2,))
    torch.distributed.destroy_process_group()


def sharded(mesh: Any, rows: int = 3, start: float = 0.0) -> dict[str, Any]:
    """A state whose weight is a DTensor of twice as many rows as this rank has."""
    import torch
    from torch.distributed.tensor import DTensor, Shard

    shard = torch.arange(2.0 * rows).view(rows, 2) + start
    return {"model": [DTensor.from_local(shard, mesh, [Shard(0)], run_check=False)], "step": 7}


def test_a_dtensor_is_restored_from_the_shard_of_its_rank(
    rounds: Rounds, worker: Callable[[], None], of_two_ranks: Any
) -> None:
    # given a snapshot with a DTensor of two ranks, and a new process with the same layout and other values
    from torch.distributed.tensor import DTensor

    saved = sharded(of_two_ranks)
    assert snapshot.save(7, saved)
    choose_next(rounds, worker, 7)
    # when the process restores
    found = snapshot.load(like=sharded(of_two_ranks, start=100.0))
    # then it has a DTensor with the saved shard
    assert found is not None
    (weight,) = found["model"]
    assert type(weight) is DTensor
    assert (weight.shape, weight.placements) == (saved["model"][0].shape, saved["model"][0].placements)
    assert (tuple(weight.shape), weight.to_local().tolist()) == ((6, 2), [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])
    assert found["step"] == 7


@pytest.mark.parametrize("rows", [None, 5])
def test_a_dtensor_needs_one_with_an_equal_shard_in_its_place(
    rounds: Rounds, worker: Callable[[], None], of_two_ranks: Any, rows: int | None
) -> None:
    assert snapshot.save(7, sharded(of_two_ranks))
    choose_next(rounds, worker, 7)
    like = None if rows is None else sharded(of_two_ranks, rows)
    wanted = r"needs a DTensor there" if rows is None else r"shape \(3, 2\), and that of `like` has \(5, 2\)"
    with pytest.raises(ValueError, match=r"state\['model'\]\[0\] was saved .*" + wanted):
        snapshot.load(like=like)


def test_saves_alternate_between_the_slots_and_keep_the_restored_one(
    rounds: Rounds, worker: Callable[[], None]
) -> None:
    for step in (1, 2, 3):
        assert snapshot.save(step, {"step": step})
    assert restored(rounds, worker, 2) == {"step": 2}
    # then the first save of the new round leaves the restored snapshot whole
    assert snapshot.save(9, {"step": 9})
    assert rounds.next() == (SavedStep(token(0), 2), SavedStep(token(1), 9))


def test_one_of_every_so_many_calls_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds = Rounds(MIB, every=3)
    rounds.next()
    begin_worker(rounds, monkeypatch)
    assert [step for step in range(10, 17) if snapshot.save(step, {})] == [10, 13, 16]
    rounds.close()


def test_without_a_snapshot_load_returns_none_and_the_reason(rounds: Rounds, worker: Callable[[], None]) -> None:
    assert snapshot.reason() == "snapshot.load() was not called"
    rounds.choose(None)
    assert snapshot.load() is None
    assert snapshot.reason() == "none was saved"


def test_load_after_a_save_is_an_error(rounds: Rounds, worker: Callable[[], None]) -> None:
    snapshot.save(1, {})
    rounds.choose(None)
    with pytest.raises(RuntimeError, match="before the first"):
        snapshot.load()


def test_a_worker_of_an_older_round_stores_nothing(rounds: Rounds, worker: Callable[[], None]) -> None:
    assert snapshot.save(1, {})
    rounds.next()
    assert not snapshot.save(2, {})
    assert rounds.next() == (SavedStep(token(0), 1),)


# States that cannot be stored


def test_a_state_that_does_not_fit_fails_its_save_with_both_sizes(
    rounds: Rounds, worker: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    import torch

    assert snapshot.save(1, {"a": torch.zeros(MIB // 2, dtype=torch.uint8)})
    assert not snapshot.save(2, {"a": torch.zeros(2 * MIB, dtype=torch.uint8)})
    assert not snapshot.save(3, {"a": torch.zeros(2 * MIB, dtype=torch.uint8)})
    (line,) = capfd.readouterr().err.splitlines()
    assert "snapshot.save(2) has stored nothing: the state of rank 0 has 2.0 MiB" in line
    assert "spec.snapshots.size is 1.0 MiB for each rank" in line
    assert rounds.next() == (SavedStep(token(0), 1),)


class Custom:
    pass


def freed(torch: Any) -> Any:
    tensor = torch.zeros(2)
    tensor.untyped_storage().resize_(0)
    return tensor


@pytest.mark.parametrize(
    ("state", "said"),
    [
        (lambda torch: {"a": [Custom()]}, "state['a'][0] is a"),
        (lambda torch: {("a", "b"): 1}, "state has the key ('a', 'b')"),
        (
            lambda torch: {"a": torch.zeros(2, 2).to_sparse()},
            "state['a'] is a torch.sparse_coo tensor: expected a dense",
        ),
        (lambda torch: {"a": torch.zeros(2, device="meta")}, "is a meta tensor: expected a dense tensor with values"),
        (lambda torch: {"a": torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)])}, "is a nested tensor"),
        (lambda torch: {"a": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)}, "is a quantized tensor"),
        (lambda torch: {"a": torch.empty(2, dtype=torch.uint4)}, "is a torch.uint4 tensor"),
        (lambda torch: {"a": freed(torch)}, "is a freed tensor: expected a dense tensor with values"),
        (lambda torch: {"a": 1 << 2039}, "state['a'] is a number of 2040 bits"),
        (lambda torch: {1 << 2039: "a"}, "a key of state is a number of 2040 bits"),
        (lambda torch: {"a": torch.zeros(2).numpy()}, "use tensor.tolist() or torch.from_numpy"),
    ],
    ids=[
        "an object",
        "a key",
        "a sparse tensor",
        "a meta tensor",
        "a nested tensor",
        "a quantized tensor",
        "numbers of less than a byte",
        "a tensor whose memory was freed, as FSDP does",
        "a huge number",
        "a huge number as a key",
        "an array",
    ],
)
@pytest.mark.filterwarnings("ignore::UserWarning")  # torch warns of the kinds of tensors
def test_a_state_that_cannot_be_restored_fails_its_save_with_its_place(
    rounds: Rounds,
    worker: Callable[[], None],
    capfd: pytest.CaptureFixture[str],
    state: Callable[[Any], Any],
    said: str,
) -> None:
    import torch

    assert not snapshot.save(1, state(torch))
    assert said in capfd.readouterr().err
    assert rounds.next() == ()


@pytest.mark.parametrize("step", [-1, 1.5, "1", 1 << 63])
def test_a_step_that_is_no_number_fails_its_save(
    rounds: Rounds, worker: Callable[[], None], capfd: pytest.CaptureFixture[str], step: Any
) -> None:
    assert not snapshot.save(step, {})
    assert "expected a whole number" in capfd.readouterr().err


# Copies


def test_a_save_overwrites_the_newest_snapshot_while_the_older_one_is_copied_to_another_pod(
    rounds: Rounds, worker: Callable[[], None]
) -> None:
    assert [snapshot.save(step, {"step": step}) for step in (1, 2)] == [True, True]
    # given the sidecar has marked the slot of step 1
    headers = rounds.memory._slots()[0]
    slot = next(n for n, header in enumerate(headers) if header is not None and header.saved.step == 1)
    os.pwrite(rounds.memory.files[0], struct.pack("<q", 1 + slot), PAGE - 8)
    assert [snapshot.save(step, {"step": step}) for step in (3, 4)] == [True, True]
    assert {header.saved.step for header in rounds.memory._slots()[0] if header} == {1, 4}
    # then it is overwritten once the copy has ended
    os.pwrite(rounds.memory.files[0], bytes(8), PAGE - 8)
    assert snapshot.save(5, {"step": 5})
    assert {header.saved.step for header in rounds.memory._slots()[0] if header} == {4, 5}


def test_the_saves_of_a_process_are_numbered(rounds: Rounds, worker: Callable[[], None]) -> None:
    for step in (10, 20):
        snapshot.save(step, {})
    assert {(x.saved.step, x.serial) for x in rounds.memory._slots()[0] if x} == {(10, 1), (20, 2)}


# Damage


def test_a_flipped_bit_anywhere_is_refused_and_the_snapshot_is_discarded(
    rounds: Rounds, worker: Callable[[], None]
) -> None:
    import torch

    state = {"a": torch.arange(200_000, dtype=torch.int16), "b": torch.ones(70_001, dtype=torch.uint8), "c": "text"}
    rng = random.Random(24)
    file, used = rounds.memory.files[0], 0
    for _ in range(FLIPS):
        assert snapshot.save(1, state)
        saved = SavedStep(token(rounds.number), 1)
        slot = next(slot for slot in (0, 1) if rounds.memory._slots()[0][slot] is not None)
        content = PAGE + slot * (PAGE + MIB) + PAGE
        used = struct.unpack("<q", os.pread(file, 8, content - PAGE + 64))[0]
        structure = struct.unpack("<q", os.pread(file, 8, content - PAGE + 56))[0]
        first = math.ceil(structure / 64) * 64
        at = content + rng.choice([rng.randrange(structure), rng.randrange(first, first + 400_000)])
        os.pwrite(file, bytes([os.pread(file, 1, at)[0] ^ 1 << rng.randrange(8)]), at)
        rounds.next()
        rounds.choose(saved)
        worker()
        with pytest.raises(snapshot.DamagedSnapshotError, match="is discarded"):
            snapshot.load()
        assert rounds.next() == ()
        worker()
        rounds.choose(None)
        assert snapshot.load() is None
    assert used > 470_000


def test_a_rank_without_the_snapshot_that_all_others_restore_fails(rounds: Rounds, worker: Callable[[], None]) -> None:
    rounds.choose(SavedStep(token(0), 7))
    with pytest.raises(snapshot.DamagedSnapshotError, match="rank 0 has no snapshot of step 7"):
        snapshot.load()


def test_a_structure_with_code_is_refused(rounds: Rounds, worker: Callable[[], None]) -> None:
    """As from a process that has replaced the structure, with the right digest."""
    import hashlib
    import io
    import zlib

    import torch

    class Attack:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.mkdir, ("attacked",)

    file = io.BytesIO()
    torch.save({"a": Attack()}, file)
    structure = file.getvalue()
    names = struct.pack("<6q", 0, 1, 0, 5, 0, 1)
    body = struct.pack("<q", MAGIC) + names + struct.pack("<5q", *[len(structure)] * 2, zlib.crc32(structure), 1, 0)
    body += hashlib.sha256(names + structure).digest() + bytes(24)
    os.pwrite(rounds.memory.files[0], structure, 2 * PAGE)
    os.pwrite(rounds.memory.files[0], body + struct.pack("<q", zlib.crc32(body)), PAGE)
    with pytest.raises(pickle.UnpicklingError, match=r"weights_only|Weights only"):
        restored(rounds, worker, 5)
    assert not Path("attacked").exists()


# Kills


def test_a_worker_that_is_killed_at_any_instant_leaves_the_last_or_the_last_but_one_step() -> None:
    import torch

    rounds, rng = Rounds(16 * MIB), random.Random(24)
    torch.set_num_threads(1)
    base = torch.arange(1_500_000, dtype=torch.int64)
    for _ in range(KILLS):
        whole = rounds.next()
        done, reports = os.pipe()
        saved = rng.choice(whole) if whole else None  # each one that is reported has to be right
        restored = -1 if saved is None else saved.step
        pid = os.fork()
        if pid == 0:
            try:
                train(rounds, base, restored, reports)
            finally:
                os._exit(1)
        os.close(reports)
        rounds.choose(saved)
        select.select([done], [], [], LIMIT_S)  # its first save, or its end
        time.sleep(rng.uniform(0.0, 0.02))  # the instant of the fault is random
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        with os.fdopen(done, "rb") as file:
            words = file.read()
        last = struct.unpack("<q", words[-8:])[0] if words else restored
        assert last > restored, "it has not restored the state, or not saved"
        steps = [x.step for x in rounds.next() if x.token == token(rounds.number - 1)]
        assert max(steps) in (last, last + 1)
    rounds.close()


def train(rounds: Rounds, base: Any, restored: int, reports: int) -> None:
    """A worker: it restores, checks the content, and saves one step after the other; it reports each save."""
    import torch

    become_worker(rounds, os.environ.__setitem__)
    snapshot_slots._found, snapshot_slots._looked = None, False
    state = snapshot.load()
    step = -1 if state is None else state["step"]
    assert step == restored
    assert state is None or torch.equal(state["tensor"], base + step)
    while True:
        step += 1
        assert snapshot.save(step, {"step": step, "tensor": base + step})
        os.write(reports, struct.pack("<q", step))
