"""The search for a seed that breaks a simulation."""

from pathlib import Path

import pytest

from tests.seeds import find_seed


@pytest.fixture(autouse=True)
def empty_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNDERSTUDY_CACHE", str(tmp_path))


def tried(name: str, *breaking: int, seeds: int = 5, ignored: int | None = None) -> tuple[int | None, list[int]]:
    """The seed that was found, and all seeds that ran."""
    tried_seeds: list[int] = []

    def run(seed: int) -> None:
        tried_seeds.append(seed)
        if seed in breaking:
            raise ValueError(seed)

    return find_seed(name, seeds, run, ValueError, lambda raised: raised.args != (ignored,)), tried_seeds


def test_seeds_are_tried_in_order_until_one_breaks() -> None:
    assert tried("one vote elects", 3, 4) == (3, [0, 1, 2, 3])


def test_no_seed_breaks() -> None:
    assert tried("one vote elects") == (None, [0, 1, 2, 3, 4])


def test_the_seed_that_was_found_is_tried_first_and_under_its_name_only() -> None:
    tried("one vote elects", 3)
    assert tried("one vote elects", 3) == (3, [3])
    assert tried("half of the voters elect", 3) == (3, [0, 1, 2, 3])


def test_after_a_change_of_the_code_all_others_are_tried() -> None:
    tried("one vote elects", 3)
    assert tried("one vote elects", 4) == (4, [3, 0, 1, 2, 4])
    assert tried("one vote elects", 4) == (4, [4])


def test_a_seed_beyond_the_limit_is_not_tried() -> None:
    tried("one vote elects", 3)
    assert tried("one vote elects", 1, seeds=2) == (1, [0, 1])


def test_a_seed_that_breaks_another_rule_is_skipped_and_not_kept() -> None:
    assert tried("one vote elects", 1, 3, ignored=1) == (3, [0, 1, 2, 3])
    assert tried("one vote elects", 1, 3, ignored=1) == (3, [3])


def test_seeds_that_break_other_rules_alone_find_nothing() -> None:
    assert tried("one vote elects", 1, ignored=1) == (None, [0, 1, 2, 3, 4])
