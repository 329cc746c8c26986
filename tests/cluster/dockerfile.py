"""The parts of the checkout that go into a target of the Dockerfile, derived from its text.

Pure, and only as much of the Dockerfile language as ours uses: stages, COPY with and
without --from, ARG. The name of an image contains a hash of exactly these parts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass
class Stage:
    """One FROM … AS name, up to the next."""

    name: str
    parent: str
    lines: list[str] = field(default_factory=list)
    sources: set[str] = field(default_factory=set)  # paths copied from the context
    needs: set[str] = field(default_factory=set)  # stages copied from


@dataclass(frozen=True)
class Dockerfile:
    """A parsed Dockerfile: `preamble` is the text before the first FROM."""

    preamble: list[str]
    stages: dict[str, Stage]

    @classmethod
    def parse(cls, text: str) -> Dockerfile:
        parsed = cls([], {})
        stage: Stage | None = None
        for line in _instructions(text):
            started = re.match(r"FROM\s+(\S+)(?:\s+AS\s+(\S+))?$", line, re.IGNORECASE)
            if started:
                stage = Stage(started[2] or f"stage {len(parsed.stages)}", started[1])
                parsed.stages[stage.name] = stage
            if stage is None:
                parsed.preamble.append(line)
                continue
            stage.lines.append(line)
            _note_copy(stage, line)
        return parsed

    def stages_of(self, target: str) -> list[Stage]:
        """The target's stage and every stage that it is built on or copies from."""
        stage = self.stages[target]
        found = {target: stage}
        for name in sorted({stage.parent, *stage.needs} & self.stages.keys()):
            found |= {other.name: other for other in self.stages_of(name)}
        return list(found.values())

    def sources_of(self, target: str) -> list[str]:
        """The context's paths that go into a target, sorted."""
        return sorted(set().union(*(stage.sources for stage in self.stages_of(target))))

    def text_of(self, target: str) -> str:
        """The instructions of a target."""
        return "\n".join([*self.preamble, *(line for stage in self.stages_of(target) for line in stage.lines)])

    def arguments(self) -> set[str]:
        """Every name that an ARG declares."""
        lines = [*self.preamble, *(line for stage in self.stages.values() for line in stage.lines)]
        declared = [re.match(r"ARG\s+(\w+)", line, re.IGNORECASE) for line in lines]
        return {match[1] for match in declared if match}


def _instructions(text: str) -> Iterator[str]:
    """Instructions without comments, one per line."""
    uncommented = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in uncommented.replace("\\\n", " ").splitlines():
        if line.strip():
            yield line.strip()


def _note_copy(stage: Stage, line: str) -> None:
    words = line.split()
    if words[0].upper() not in ("COPY", "ADD"):
        return
    origin = [word.removeprefix("--from=") for word in words if word.startswith("--from=")]
    if origin:
        stage.needs.add(origin[0])
    else:
        stage.sources |= {word for word in words[1:-1] if not word.startswith("--")}
