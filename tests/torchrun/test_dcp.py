"""torch.distributed.checkpoint in the memory of snapshots, in one process. test_snapshots_local.py has FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.torch_install import torch_version
from tests.snapshot_rounds import Rounds
from tests.torchrun.test_snapshots import choose_next, of_two_ranks, rounds, with_torch, worker
from understudy_protocol import snapshot_slots
from understudy_torch import snapshot

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.filterwarnings("ignore:torch.distributed is (disabled|unavailable):UserWarning"),  # as the test wants
    pytest.mark.filterwarnings("ignore:TypedStorage is deprecated:UserWarning"),  # torch 2.6 uses it itself
]
IS_TORCH_2_6 = torch_version().startswith("2.6.")
#: The arguments of save() and load() for one process. torch 2.6 takes none: without a process group, it saves alone.
ALONE: dict[str, Any] = {} if IS_TORCH_2_6 else {"no_dist": True}
__all__ = ["of_two_ranks", "rounds", "with_torch", "worker"]  # fixtures


def state(start: float) -> dict[str, Any]:
    """Of all kinds of values; as a template for a load, from another start."""
    import torch

    torch.manual_seed(int(start))
    return {
        "model": {"weight": torch.randn(3, 5), "steps": torch.tensor(start, dtype=torch.int64)},
        "step": int(start),
        "schedule": {"rates": [start, start + 1]},
    }


def save(step: int) -> bool:
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotWriter

    writer = SnapshotWriter(step)
    checkpoint.save(state(step), storage_writer=writer, **ALONE)
    return writer.has_stored


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found["model"]["weight"].equal(expected["model"]["weight"])
    assert found["model"]["steps"].equal(expected["model"]["steps"])
    assert (found["step"], found["schedule"]) == (expected["step"], expected["schedule"])


def test_a_state_is_restored_from_memory(rounds: Rounds, worker: Callable[[], None], tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotReader

    # given a checkpoint in a folder, and a newer snapshot
    checkpoint.save(state(1), checkpoint_id=tmp_path, **ALONE)
    assert save(7)
    choose_next(rounds, worker, 7)
    # when the next round loads, then it gets the snapshot
    reader = SnapshotReader(checkpoint.FileSystemReader(tmp_path))
    assert reader.step == 7
    found = state(0)
    checkpoint.load(found, storage_reader=reader, **ALONE)
    assert_equal(found, state(7))
    # and the next save keeps it
    assert save(8)
    choose_next(rounds, worker, 8)


def test_without_a_snapshot_storage_is_read(rounds: Rounds, worker: Callable[[], None], tmp_path: Path) -> None:
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotReader

    checkpoint.save(state(1), checkpoint_id=tmp_path, **ALONE)
    rounds.next()
    rounds.choose(None)
    worker()
    reader, found = SnapshotReader(checkpoint.FileSystemReader(tmp_path)), state(0)
    checkpoint.load(found, storage_reader=reader, **ALONE)
    assert_equal(found, state(1))
    assert (reader.step, snapshot.reason()) == (None, "none was saved")


def test_a_snapshot_of_another_kind_is_an_error_with_its_name(
    rounds: Rounds, worker: Callable[[], None], tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotReader

    snapshot.save(7, {"step": 7})
    choose_next(rounds, worker, 7)
    reader = SnapshotReader(checkpoint.FileSystemReader(tmp_path))
    with pytest.raises(ValueError, match=r"was stored by snapshot.save\(\): restore it with snapshot.load\(\)"):
        _ = reader.step


def test_after_an_error_the_reader_does_not_read_storage(
    rounds: Rounds, worker: Callable[[], None], tmp_path: Path
) -> None:
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotReader

    checkpoint.save(state(1), checkpoint_id=tmp_path, **ALONE)
    snapshot.save(7, {"step": 7})
    choose_next(rounds, worker, 7)
    reader = SnapshotReader(checkpoint.FileSystemReader(tmp_path))
    with pytest.raises(ValueError, match="restore it with"):
        _ = reader.step
    with pytest.raises(RuntimeError, match="restores once"):
        reader.read_metadata()


@pytest.mark.skipif(IS_TORCH_2_6, reason="torch 2.6 cannot save in one process of a group")
@pytest.mark.parametrize("placement", ["other dimension", "replicated", "was replicated", "the same"])
def test_shards_of_another_layout_are_not_filled_in_part(
    rounds: Rounds, worker: Callable[[], None], of_two_ranks: Any, tmp_path: Path, placement: str
) -> None:
    import torch
    from torch.distributed import checkpoint
    from torch.distributed.tensor import DTensor, Replicate, Shard

    from understudy_torch.dcp import SnapshotReader, SnapshotWriter

    def weight(local: torch.Tensor, layout: Any) -> dict[str, Any]:
        return {"weight": DTensor.from_local(local, of_two_ranks, [layout], run_check=False)}

    # given the shard of rank 1 of 2: two of four rows, or all of them
    saved = torch.arange(8.0).view(2, 4)
    whole = weight(torch.zeros(4, 4), Replicate())
    before = whole if placement == "was replicated" else weight(saved, Shard(0))
    checkpoint.save(before, storage_writer=SnapshotWriter(7), **ALONE)
    choose_next(rounds, worker, 7)
    # when the same tensor has another layout in the next round
    locals_ = {
        "other dimension": (torch.zeros(4, 2), Shard(1)),
        "replicated": (torch.zeros(4, 4), Replicate()),
        "was replicated": (torch.zeros(2, 4), Shard(0)),
        "the same": (torch.zeros(2, 4), Shard(0)),
    }
    found = weight(*locals_[placement])
    reader = SnapshotReader(checkpoint.FileSystemReader(tmp_path))
    if placement == "the same":
        checkpoint.load(found, storage_reader=reader, **ALONE)
        assert found["weight"].to_local().equal(saved)
        return
    with pytest.raises(checkpoint.CheckpointException, match="the mesh or the placements have changed"):
        checkpoint.load(found, storage_reader=reader, **ALONE)


def test_a_state_that_does_not_fit_fails_its_save_and_training_continues(
    rounds: Rounds, worker: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    import torch
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotWriter

    writer = SnapshotWriter(1)
    checkpoint.save({"weight": torch.zeros(1 << 20)}, storage_writer=writer, **ALONE)
    assert not writer.has_stored
    assert "snapshot.save(1) has stored nothing: the state of rank 0 has 4.0 MiB" in capfd.readouterr().err


@pytest.mark.skipif(IS_TORCH_2_6, reason="torch 2.6 does not cache plans")
def test_a_planner_that_caches_its_plans_stores_nothing_with_the_reason(
    rounds: Rounds, worker: Callable[[], None], capfd: pytest.CaptureFixture[str]
) -> None:
    from torch.distributed import checkpoint

    from understudy_torch.dcp import SnapshotWriter

    for step, stored in ((1, True), (2, False), (3, False)):
        writer, planner = SnapshotWriter(step), checkpoint.DefaultSavePlanner(enable_plan_caching=True)
        checkpoint.save(state(1), storage_writer=writer, planner=planner, **ALONE)
        assert writer.has_stored == stored
    assert capfd.readouterr().err.count("its planner caches plans (enable_plan_caching)") == 1


def test_outside_of_a_job_nothing_is_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshot_slots, "_found", None)
    monkeypatch.setattr(snapshot_slots, "_looked", True)
    assert not save(1)
