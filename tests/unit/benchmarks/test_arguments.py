"""Lists on a benchmark's command line: the error for a wrong item lists the valid ones."""

from argparse import ArgumentTypeError

import pytest

from benchmarks.arguments import listed, sizes, some_of
from benchmarks.operator.plan import Case, System


def test_cases_are_read_in_their_order() -> None:
    assert listed(Case)("delete,create") == (Case.DELETE, Case.CREATE)


@pytest.mark.parametrize("text", ["recreated", "create,recreated", "", "create,"])
def test_the_error_for_an_unknown_case_lists_the_known_ones(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"there is no '(recreated)?': some of create,status,"):
        listed(Case)(text)


def test_sizes_are_numbers_above_0() -> None:
    assert sizes("100,5000") == (100, 5000)


@pytest.mark.parametrize("text", ["5k", "0", "-1", "100,", ""])
def test_an_invalid_size_is_named(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is no size: numbers above 0, with commas between"):
        sizes(text)


def test_the_help_names_all_cases() -> None:
    assert some_of(System) == "of understudy,jobset"
