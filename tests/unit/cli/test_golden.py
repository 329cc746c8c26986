"""The views as text. The golden files are read by people: rewrite them with `python -m tests.unit.cli.golden`."""

import pytest

from tests.unit.cli import golden


@pytest.mark.parametrize("width", golden.WIDTHS)
@pytest.mark.parametrize("view", golden.VIEWS)
def test_a_view_is_printed_as_its_golden_file_has_it(view: str, width: int) -> None:
    assert golden.shown(view, width) == golden.golden(view, width).read_text()


@pytest.mark.parametrize("view", golden.VIEWS)
def test_no_line_is_wider_than_the_terminal(view: str) -> None:
    assert max(map(len, golden.shown(view, 80).splitlines())) <= 80
