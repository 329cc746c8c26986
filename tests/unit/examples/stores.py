"""Checkpoint stores with JSON for torch, for the tests of examples/ddp/checkpoints.py."""

import json
from pathlib import Path
from typing import Any

from examples.ddp.checkpoints import CheckpointStore


def dumps(state: Any) -> bytes:
    return json.dumps(state).encode()


def store_of(folder: Path, token: str, **how: Any) -> CheckpointStore:
    return CheckpointStore(folder, token, how.get("dumps", dumps), json.loads)


def resumed(store: CheckpointStore) -> Any:
    """The state with which the round begins, or None."""
    checkpoint = store.begin()
    return store.load(checkpoint) if checkpoint else None
