"""Text of the cluster, made safe for a terminal. Pure.

Pods and users write names, messages and log lines. A terminal executes control characters: it would move the cursor,
hide text, or change its title. So these are removed. Text is cut at a length, so that one message cannot fill a screen.
"""

import re
import unicodedata

#: Characters of a message in a view.
MESSAGE_LENGTH = 2_000
#: Characters of a line of a log. The launcher splits lines at 64 KiB.
LINE_LENGTH = 1 << 16
#: A sequence that sets colors, moves the cursor, or sets the terminal's title.
_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])?")
_PRINTABLE = re.compile(r"[\x20-\x7e]*")


def one_line(text: str, limit: int = MESSAGE_LENGTH) -> str:
    """All of the text in one line, cut at `limit` characters."""
    text = text[: 4 * limit]
    if not _PRINTABLE.fullmatch(text):
        text = " ".join(_without_controls(_SEQUENCES.sub("", text)).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def log_line(text: str) -> str:
    """A line of a log. Tabs stay."""
    text = text[:LINE_LENGTH]
    if _PRINTABLE.fullmatch(text):
        return text
    return "\t".join(_without_controls(part) for part in _SEQUENCES.sub("", text).split("\t"))


def _without_controls(text: str) -> str:
    """Line ends become spaces. All other characters of the categories C (controls, directions, surrogates) go."""
    return "".join(
        character if unicodedata.category(character)[0] != "C" else " " if character in "\r\n\t\v\f\x85" else ""
        for character in text
    )
