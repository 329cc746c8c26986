"""Quantities of memory as bytes."""

import pytest

from understudy_operator.plan.facts.quantities import bytes_in


@pytest.mark.parametrize(
    ("quantity", "size"),
    [
        ("1024", 1024),
        (1024, 1024),
        ("2Ki", 2048),
        ("512Mi", 536870912),
        ("1.5Gi", 1610612736),
        ("2G", 2000000000),
        ("3k", 3000),
        ("1e3", 1000),
        ("0", 0),
    ],
)
def test_a_quantity_is_read(quantity: object, size: int) -> None:
    assert bytes_in(quantity) == size


@pytest.mark.parametrize("text", ["", "Gi", "-1", "1 Gi", "1gi", "100m", "1" * 30, "1e", None, 1.5, True and "x", []])
def test_anything_else_is_none(text: object) -> None:
    assert bytes_in(text) is None
