"""Text of the cluster cannot control the terminal."""

import pytest

from understudy_cli.untrusted import log_line, one_line


@pytest.mark.parametrize(
    ("text", "safe"),
    [
        ("plain text", "plain text"),
        ("ünïcode 日本", "ünïcode 日本"),
        ("two\nlines\tand a tab", "two lines and a tab"),
        ("\x1b[31mred\x1b[0m", "red"),
        ("\x1b[2J\x1b[1;1Hhome", "home"),
        ("\x1b]0;title\x07rest", "rest"),
        ("\x1b]8;;http://x\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x9b31mred", "31mred"),
        ("bell\x07 back\x08space null\x00", "bell backspace null"),
        ("right\u202eto left\u2066", "rightto left"),
        ("\ud800 surrogate", "surrogate"),
        ("\x1b", ""),
    ],
)
def test_control_characters_are_removed(text: str, safe: str) -> None:
    assert one_line(text) == safe


def test_a_long_text_is_cut_with_a_mark() -> None:
    assert one_line("a" * 50, limit=10) == "a" * 9 + "…"
    assert len(one_line("\x1b[31m" * 10_000 + "b" * 10_000)) <= 2_000


def test_a_line_of_a_log_keeps_its_tabs_and_spaces() -> None:
    assert log_line("[rank 3]   a\tb") == "[rank 3]   a\tb"
    assert log_line("\x1b[1m  50%\x1b[0m|#####\r") == "  50%|##### "
