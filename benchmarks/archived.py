"""Numbers from before samples were kept, in benchmarks/archived.json: shown until their benchmark has run again.

    {NAME: {"facts": {…}, "records": [{"system", "case", …}, …]}, …}

The file was made once, from the tables that docs/benchmarks.md had; nothing writes it. Results of a new run take the
place of an entry, which can be deleted then.
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
