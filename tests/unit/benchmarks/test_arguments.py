"""Lists on a benchmark's command line: a wrong one is answered with what there is."""

from argparse import ArgumentTypeError

import pytest

from benchmarks.arguments import listed, sizes, some_of
from benchmarks.operator.plan import Case, System


def test_cases_are_read_in_the_order_in_which_they_were_asked_for() -> None:
    assert listed(Case)("delete,create") == (Case.DELETE, Case.CREATE)


@pytest.mark.parametrize("text", ["recreated", "create,recreated", "", "create,"])
def test_a_case_that_does_not_exist_is_answered_with_those_that_do(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match=r"there is no '(recreated)?': some of create,status,"):
        listed(Case)(text)


def test_sizes_are_numbers_above_0() -> None:
    assert sizes("100,5000") == (100, 5000)


@pytest.mark.parametrize("text", ["5k", "0", "-1", "100,", ""])
def test_what_is_no_size_is_named(text: str) -> None:
    with pytest.raises(ArgumentTypeError, match="is no size: numbers above 0, with commas between"):
        sizes(text)


def test_the_help_names_all() -> None:
    assert some_of(System) == "of understudy,jobset"
