"""The documentation site: every page is in the navigation, and every link and anchor has a target."""

from __future__ import annotations

import posixpath
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest
import yaml

from scripts import recovery_picture
from scripts.site_hooks import DOCS, PAGES, ROOT, indented, linked

LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^ *```.*?^ *```", re.MULTILINE | re.DOTALL)


class Loader(yaml.SafeLoader):
    """Reads mkdocs.yml, whose tags name functions of Python."""


Loader.add_multi_constructor("tag:yaml.org,2002:python/", lambda *_: None)


def config() -> dict[str, Any]:
    read: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"), Loader)
    return read


def in_navigation(entry: Any) -> Iterator[str]:
    match entry:
        case str(page):
            yield page
        case list() | dict():
            for inner in entry.values() if isinstance(entry, dict) else entry:
                yield from in_navigation(inner)


@cache
def tracked() -> frozenset[str]:
    """The files of the repository, and the folders that contain them."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    files = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    present = {file for file in files if file and (ROOT / file).exists()}
    return frozenset(present | {parent for file in present for parent in parents(file)})


def parents(file: str) -> Iterator[str]:
    while file := posixpath.dirname(file):
        yield file


def pages() -> list[str]:
    return sorted(file for file in tracked() if file.endswith(".md"))


@cache
def anchors(page: str) -> frozenset[str]:
    """The anchors that GitHub derives from the headings."""
    text = FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    found: Counter[str] = Counter()
    names = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).replace("`", "").strip().lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        names.add(f"{anchor}-{found[anchor]}" if found[anchor] else anchor)
        found[anchor] += 1
    return frozenset(names)


def dead_links(page: str) -> Iterator[str]:
    text = re.sub(r"(?<!\[)`[^`\n]+`", "", FENCE.sub("", (ROOT / page).read_text(encoding="utf-8")))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        target, _, anchor = link.partition("#")
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page), target)) if target else page
        if path not in tracked() or (anchor and path.endswith(".md") and anchor not in anchors(path)):
            yield link


def test_every_page_is_in_the_navigation_once() -> None:
    files = {path.relative_to(ROOT / DOCS).as_posix() for path in (ROOT / DOCS).rglob("*.md")}
    assert Counter(in_navigation(config()["nav"])) == Counter({*files, *PAGES.values()})


@pytest.mark.parametrize("page", pages())
def test_every_link_of_a_page_leads_to_a_file_and_a_heading(page: str) -> None:
    assert list(dead_links(page)) == []


def test_a_build_fails_for_a_page_without_navigation_and_for_a_dead_link_or_anchor() -> None:
    validation = config()["validation"]
    assert validation["nav"] == {"omitted_files": "warn", "not_found": "warn", "absolute_links": "warn"}
    warn = dict.fromkeys(("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn")
    assert validation["links"] == warn
    assert "scripts/site build --strict" in (ROOT / "Makefile").read_text(encoding="utf-8")


@pytest.mark.parametrize("tutorial", sorted((ROOT / DOCS / "tutorials").glob("*.md")), ids=lambda path: path.stem)
def test_the_code_of_a_tutorial_can_be_parsed(tutorial: Any) -> None:
    fences = re.findall(r"^```(\w+)\n(.*?)^```", tutorial.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert fences
    for language, code in fences:
        if language == "python":
            compile(code, tutorial.name, "exec")
        elif language == "yaml":
            assert list(yaml.safe_load_all(code))


def test_the_picture_of_a_recovery_has_the_numbers_of_the_readme(capsys: pytest.CaptureFixture[str]) -> None:
    assert recovery_picture.main(["--check"]) == 0, capsys.readouterr().err
    acts = list(recovery_picture.read_acts((ROOT / "README.md").read_text(encoding="utf-8")))
    assert len(acts) == 5
    assert recovery_picture.SHOWN in {act.name for act in acts}


# Differences between mkdocs and GitHub --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("site", "link", "expected"),
    [
        ("how-to/queue.md", "[limits](../reference/limits.md#sizes)", "[limits](../reference/limits.md#sizes)"),
        (
            "how-to/install.md",
            "[SECURITY.md](../../SECURITY.md)",
            "[Security policy](../contributors/security-policy.md)",
        ),
        ("how-to/rl.md", "[examples](../../examples/rl)", "[examples](../examples/rl.md)"),
        ("how-to/rl.md", "[train](../../examples/rl/train.py)", "train (`examples/rl/train.py`)"),
        ("how-to/rl.md", "[train.py](../../examples/rl/train.py)", "`examples/rl/train.py`"),
        ("changelog.md", "[queue](docs/how-to/queue.md)", "[queue](how-to/queue.md)"),
        ("examples/ddp.md", "[queue](../../docs/how-to/queue.md#kueue)", "[queue](../how-to/queue.md#kueue)"),
        ("how-to/rl.md", "![a picture](../images/recovery.svg)", "![a picture](../images/recovery.svg)"),
        ("how-to/rl.md", "[a](https://a.org), [b](#limits)", "[a](https://a.org), [b](#limits)"),
        ("how-to/rl.md", "`[x](../../examples/rl/train.py)`", "`[x](../../examples/rl/train.py)`"),
    ],
)
def test_a_link_leads_to_the_page_of_the_site(site: str, link: str, expected: str) -> None:
    assert linked(link, site) == expected


def test_the_content_of_a_list_is_indented_by_four_characters() -> None:
    given = [
        *("Text:", "- one", "  - inner", "    more", "", "  after", "- two", ""),
        *("1. first", "", "   ```sh", "   make", "     deep", "   ```", "2. second"),
    ]
    expected = [
        *("Text:", "", "- one", "    - inner", "        more", "", "    after", "", "- two", ""),
        *("1. first", "", "    ```sh", "    make", "      deep", "    ```", "", "2. second"),
    ]
    assert indented("\n".join(given)).split("\n") == expected
