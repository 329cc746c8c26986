"""Numbers from before samples were stored, in benchmarks/archived.json: shown until their benchmark has run again.

    {NAME: {"facts": {…}, "records": [{"system", "case", …}, …]}, …}

The file was created once, from old tables of docs/contributors/benchmarks.md. No program writes it. If a new run
has results for an entry, they replace it; then delete the entry.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from benchmarks.child import CHECKOUT
from benchmarks.records import Record

FILE = CHECKOUT / "benchmarks" / "archived.json"


@dataclass(frozen=True)
class Archived:
    facts: Mapping[str, str]
    records: tuple[Record, ...]


def read_archived() -> dict[str, Archived]:
    entries = json.loads(FILE.read_text()).items()
    return {name: Archived(x["facts"], tuple(Record(**record) for record in x["records"])) for name, x in entries}
