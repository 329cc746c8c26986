"""Adapts pages that are written for GitHub to mkdocs: links to files outside of docs/, and lists.

- A few pages are outside of docs/, such as CHANGELOG.md. PAGES adds them to the site.
- A link from a page to one of them, or from one of them into docs/, leads to the page of the site.
- A link to any other file of the repository becomes its text, with the file's path in parentheses.
- A link whose text is the name of a page, such as install.md, gets the page's title as its text.
- Markdown on GitHub indents the content of a list by the width of its marker; mkdocs indents by four characters.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
DOCS = "docs"
#: Path in the repository: path in the site.
PAGES = {
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributors/contributing.md",
    "SECURITY.md": "contributors/security-policy.md",
    "tests/cluster/README.md": "contributors/cluster.md",
    "examples/ddp/README.md": "examples/ddp.md",
    "examples/fsdp/README.md": "examples/fsdp.md",
    "examples/jax/README.md": "examples/jax.md",
    "examples/pool/README.md": "examples/pool.md",
    "examples/rl/README.md": "examples/rl.md",
}
_SOURCES = {site: path for path, site in PAGES.items()}
_LINK = re.compile(r"(?P<image>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)")
_FENCE = re.compile(r"\s*(```|~~~)")
_MARKER = re.compile(r"(?P<indent> *)(?P<marker>[-*]|\d+\.)(?P<space> +)(?=\S)")


def on_files(files: Any, config: Any) -> Any:
    # The tests of this module have no mkdocs.
    from mkdocs.structure.files import File

    for path, site in PAGES.items():
        files.append(File.generated(config, site, content=(ROOT / path).read_text(encoding="utf-8")))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    return indented(linked(markdown, page.file.src_uri))


def linked(markdown: str, site: str) -> str:
    """The page `site` with links that work in the site."""
    source = _SOURCES.get(site, f"{DOCS}/{site}")

    def replace(link: re.Match[str]) -> str:
        target, _, anchor = link["target"].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return link[0]
        path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
        page = site_path(path)
        if page is None:
            return mentioned(link["text"], path)
        relative = posixpath.relpath(page, posixpath.dirname(site) or ".")
        text = title(path) if link["text"].endswith(".md") else link["text"]
        return f"{link['image']}[{text}]({relative}{'#' + anchor if anchor else ''})"

    parts = re.split(r"(^```.*?^```|`[^`\n]+`(?!\]))", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("`") else _LINK.sub(replace, part) for part in _joined(parts))


def _joined(parts: list[str]) -> list[str]:
    """Join parts again if a code span is inside a link's text: the span belongs to the link."""
    joined: list[str] = []
    for part in parts:
        opens = bool(joined) and not joined[-1].startswith("```") and _is_open(joined[-1])
        if opens:
            joined[-1] += part
        else:
            joined.append(part)
    return joined


def _is_open(text: str) -> bool:
    """Whether the text ends inside the brackets of a link."""
    return text.rfind("[") > text.rfind("]")


def site_path(path: str) -> str | None:
    """The path in the site of a file of the repository; None if it is not there."""
    if path.startswith(f"{DOCS}/"):
        return path.removeprefix(f"{DOCS}/")
    return PAGES.get(path) or PAGES.get(f"{path}/README.md")


def title(path: str) -> str:
    """The heading of a page of the repository."""
    file = ROOT / path
    text = (file / "README.md" if file.is_dir() else file).read_text(encoding="utf-8")
    return next(line.removeprefix("# ") for line in text.split("\n") if line.startswith("# "))


def mentioned(text: str, path: str) -> str:
    name = text.strip("`").rstrip("/")
    if name == path or path.endswith(f"/{name}"):
        return f"`{path}`"
    return f"{text} (`{path}`)"


def indented(markdown: str) -> str:
    """Lists with four characters for each level. An empty line precedes a list that follows other text."""
    lines: list[str] = []
    contents: list[int] = []  # by level, the column at which the content of its item begins
    in_fence = in_list = False  # in_list: the lines since the last empty one begin with an item of a list
    for line in markdown.split("\n"):
        if not line.strip():
            lines.append(line)
            in_list = in_list and in_fence
            continue
        column = len(line) - len(line.lstrip(" "))
        if not in_fence:
            while contents and column < contents[-1]:
                contents.pop()
        prefix = " " * 4 * len(contents)
        marker = None if in_fence else _MARKER.match(line)
        if marker is not None:
            if not in_list and lines and lines[-1].strip():
                lines.append("")
            lines.append(prefix + line.lstrip(" "))
            contents.append(marker.end())
            in_list = True
            continue
        in_fence ^= _FENCE.match(line) is not None
        lines.append(prefix + line[min(contents[-1] if contents else 0, column) :])
    return "\n".join(lines)
