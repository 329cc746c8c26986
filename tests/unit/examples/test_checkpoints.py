"""The fence of examples/ddp/checkpoints.py: no checkpoint of a replaced rank 0 counts."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.ddp.checkpoints import CorruptCheckpoint, RoundId, StaleRound
from tests.unit.examples.stores import dumps, resumed, store_of


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


# Resuming


def test_the_first_round_begins_without_a_checkpoint(tmp_path):
    assert store_of(tmp_path / "not" / "yet", "1.1.0").begin() is None


def test_the_newest_checkpoint_is_resumed_and_its_step_is_in_its_name(tmp_path):
    # given a round that saved twice
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(100, "at 100")
    first.save(120, "at 120")
    # when the next round begins
    second = store_of(tmp_path, "1.1.1")
    found = second.begin()
    # then it has the newer one
    assert found is not None
    assert found.name == "step-000000120.ckpt"
    assert second.load(found) == "at 120"


def test_a_round_that_saved_nothing_passes_on_the_checkpoint_that_it_resumed_from(tmp_path):
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(100, "at 100")
    assert resumed(store_of(tmp_path, "1.1.1")) == "at 100"
    assert resumed(store_of(tmp_path, "1.2.2")) == "at 100"


def test_a_round_that_died_before_it_had_begun_is_skipped(tmp_path):
    # given a round that died right after it created its folder
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(100, "at 100")
    (tmp_path / RoundId(1, 1, 1).folder).mkdir()
    # when, then
    assert resumed(store_of(tmp_path, "1.1.2")) == "at 100"


def test_without_a_token_each_start_is_newer_than_the_one_before(tmp_path):
    # given a run without Understudy, started again while the first process still runs
    first = store_of(tmp_path, "0.0.0")
    first.begin()
    first.save(10, "first")
    second = store_of(tmp_path, "0.0.0")
    # when, then
    assert resumed(second) == "first"
    second.save(20, "second")
    with pytest.raises(StaleRound):
        first.save(30, "first again")
    assert resumed(store_of(tmp_path, "0.0.0")) == "second"


# The fence


def test_a_rank_0_that_thaws_inside_its_save_publishes_nothing(tmp_path):
    # given a rank 0 that freezes within its save, and a round that begins and saves meanwhile
    newer = store_of(tmp_path, "1.1.4")

    def freeze(state: Any) -> bytes:
        assert resumed(newer) == "at 100"
        newer.save(110, "newer, at 110")
        before.update(contents(tmp_path / newer_folder))
        return dumps(state)

    before: dict[str, bytes] = {}
    newer_folder = RoundId.parse("1.1.4").folder
    older = store_of(tmp_path, "1.1.3")
    older.begin()
    older.save(100, "at 100")
    # when it thaws, with a later step
    older._dumps = freeze
    with pytest.raises(StaleRound, match=r"round 1\.1\.3 is over: round 1\.1\.4 has begun"):
        older.save(120, "older, at 120")
    # then none of its files is there, and the newer round's files are unchanged
    assert before
    assert contents(tmp_path) == {f"{newer_folder}/{name}": data for name, data in before.items()}
    assert resumed(store_of(tmp_path, "1.1.5")) == "newer, at 110"


def test_no_file_is_left_of_a_save_that_a_newer_round_interrupted(tmp_path):
    # given a newer round that has begun and not saved, so that the old folder is still there
    older = store_of(tmp_path, "1.1.3", dumps=lambda state: (store_of(tmp_path, "1.1.4").begin(), dumps(state))[1])
    older.begin()
    # when
    with pytest.raises(StaleRound):
        older.save(120, "older, at 120")
    # then
    assert all(name.endswith("/BEGUN") for name in contents(tmp_path))


def test_a_checkpoint_after_the_last_check_does_not_count(tmp_path, monkeypatch):
    # given a rank 0 frozen between its last check and its rename, while a newer round begins
    older = store_of(tmp_path, "1.1.3")
    older.begin()
    older.save(100, "at 100")
    newer = store_of(tmp_path, "1.1.4")
    rename = Path.rename

    def frozen_rename(source: Path, target: Path) -> Path:
        monkeypatch.setattr(Path, "rename", rename)
        assert resumed(newer) == "at 100"
        return rename(source, target)

    monkeypatch.setattr(Path, "rename", frozen_rename)
    # when it thaws
    with pytest.raises(StaleRound):
        older.save(120, "older, at 120")
    # then the file exists, but the next round continues the newer round's history
    assert (tmp_path / RoundId(1, 1, 3).folder / "step-000000120.ckpt").exists()
    assert resumed(store_of(tmp_path, "1.1.5")) == "at 100"


def test_a_round_that_thaws_before_it_begins_is_refused_and_leaves_no_file(tmp_path):
    newer = store_of(tmp_path, "1.1.4")
    newer.begin()
    newer.save(100, "newer")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StaleRound):
        store_of(tmp_path, "1.1.3").begin()
    assert sorted(tmp_path.rglob("*")) == before


def test_a_round_that_thaws_before_it_begins_takes_nothing_over(tmp_path):
    # given a checkpoint, and a newer round that has only created its folder
    first = store_of(tmp_path, "1.1.2")
    first.begin()
    first.save(100, "at 100")
    (tmp_path / RoundId(1, 1, 4).folder).mkdir()
    # when, then
    with pytest.raises(StaleRound):
        store_of(tmp_path, "1.1.3").begin()
    assert not (tmp_path / RoundId(1, 1, 3).folder).exists()


def test_a_round_that_is_overtaken_while_it_begins_is_refused(tmp_path, monkeypatch):
    # given a round that freezes before it links its predecessor's checkpoint
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(100, "at 100")
    newer = store_of(tmp_path, "1.1.2")
    link = os.link

    def frozen_link(source: Path, target: Path) -> None:
        monkeypatch.setattr(os, "link", link)
        assert resumed(newer) == "at 100"
        shutil.rmtree(tmp_path / RoundId(1, 1, 0).folder)  # as the newer round's first save does, oldest first
        link(source, target)

    monkeypatch.setattr(os, "link", frozen_link)
    # when it thaws, and its predecessor is gone
    with pytest.raises(StaleRound):
        store_of(tmp_path, "1.1.1").begin()
    # then
    assert resumed(store_of(tmp_path, "1.1.3")) == "at 100"


def test_a_rank_that_loads_too_late_gets_the_reason_why_the_file_is_gone(tmp_path):
    older = store_of(tmp_path, "1.1.3")
    older.begin()
    chosen = older.save(100, "at 100")
    newer = store_of(tmp_path, "1.1.4")
    newer.begin()
    newer.save(110, "at 110")
    with pytest.raises(StaleRound):
        older.load(chosen)


@pytest.mark.parametrize(("older", "newer"), [("1.1.9", "1.1.10"), ("1.9.0", "1.10.0"), ("9.2.7", "10.1.0")])
def test_rounds_are_ordered_by_number_and_not_as_text(tmp_path, older, newer):
    assert RoundId.parse(older) < RoundId.parse(newer)
    store_of(tmp_path, newer).begin()
    with pytest.raises(StaleRound):
        store_of(tmp_path, older).begin()


def test_the_newest_round_by_number_is_continued(tmp_path):
    # given rounds 9 and 10, both with a checkpoint, as neither has removed the other's folder
    for token, step in (("1.1.9", 200), ("1.1.10", 100)):
        store = store_of(tmp_path / token, token)
        store.begin()
        store.save(step, token)
        (tmp_path / token / RoundId.parse(token).folder).rename(tmp_path / RoundId.parse(token).folder)
    # when, then
    assert resumed(store_of(tmp_path, "1.1.11")) == "1.1.10"


def test_a_save_in_a_round_that_is_over_is_not_even_started(tmp_path):
    older = store_of(tmp_path, "1.1.3", dumps=lambda _state: pytest.fail("serialised"))
    older.begin()
    store_of(tmp_path, "1.1.4").begin()
    with pytest.raises(StaleRound):
        older.save(120, "older, at 120")


@pytest.mark.parametrize("token", ["", "1.1", "1.1.x", "1.1.1.1", "-1.1.1"])
def test_a_token_of_another_shape_is_refused(tmp_path, token):
    with pytest.raises(ValueError, match=r"expected epoch\.term\.round"):
        store_of(tmp_path, token)


# Damage


@pytest.mark.parametrize("damage", [lambda data: data[:-1], lambda data: b"", lambda data: data[:-1] + b"?"])
def test_a_damaged_file_is_skipped_with_a_warning(tmp_path, capsys, damage: Callable[[bytes], bytes]):
    # given two checkpoints, the newer one damaged
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(100, "at 100")
    newest = first.save(120, "at 120")
    newest.write_bytes(damage(newest.read_bytes()))
    with pytest.raises(CorruptCheckpoint):
        first.load(newest)
    # when, then
    assert resumed(store_of(tmp_path, "1.1.1")) == "at 100"
    assert "warning: skipped" in capsys.readouterr().err


def test_if_hard_links_are_not_supported_the_checkpoint_is_copied(tmp_path, monkeypatch):
    def no_links(_source: Path, _target: Path) -> None:
        raise PermissionError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(100, "at 100")
    assert resumed(store_of(tmp_path, "1.1.1")) == "at 100"


# Pruning


def test_two_checkpoints_are_kept_and_older_rounds_are_removed(tmp_path):
    # given
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    for step in (10, 20, 30):
        first.save(step, step)
    second = store_of(tmp_path, "1.1.1")
    second.begin()
    # when
    second.save(40, 40)
    # then
    own = RoundId(1, 1, 1).folder
    kept = {f"{own}/{name}" for name in ("BEGUN", "step-000000030.ckpt", "step-000000040.ckpt")}
    assert set(contents(tmp_path)) == kept
    assert os.listdir(tmp_path) == [own]


def test_a_round_that_only_began_removes_nothing(tmp_path):
    first = store_of(tmp_path, "1.1.0")
    first.begin()
    first.save(10, 10)
    before = contents(tmp_path)
    store_of(tmp_path, "1.1.1").begin()
    assert before.items() <= contents(tmp_path).items()
