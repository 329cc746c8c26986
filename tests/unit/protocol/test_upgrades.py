"""Old and new sidecars of one job understand each other: the messages of every previous version are recorded, and still
read.

A new version of the protocol adds its own files here (one example of each message, as it sends it); no file changes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.unit.protocol.readers import Reader
from understudy_protocol import adoption, copies, handshake, launcher, membership, observer, wire
from understudy_protocol.enums import Term
from understudy_protocol.hard_state import HardState
from understudy_protocol.order import Order

VERSION = 2

RECORDED = Path(__file__).parent / "recorded"
MODULES = {
    "adoption": adoption,
    "copies": copies,
    "handshake": handshake,
    "launcher": launcher,
    "membership": membership,
    "observer": observer,
}


def lines() -> list[Any]:
    return [
        pytest.param(path.stem.split("-")[1], line, id=f"{path.stem}-{json.loads(line)['type']}-{number}")
        for path in sorted(RECORDED.glob("v*.jsonl"))
        for number, line in enumerate(path.read_text().splitlines())
    ]


@pytest.mark.parametrize(("module", "line"), lines())
def test_messages_of_previous_versions_are_understood(module: str, line: str, read: Reader) -> None:
    known = wire.message_types(MODULES[module])
    message = read(line, known)
    assert not isinstance(message, wire.Unknown)
    sent, understood = json.loads(line), json.loads(wire.encode(message))
    for name in sent.keys() - {"v"}:
        assert understood[name] == sent[name] or isinstance(sent[name], list | dict), name


@pytest.mark.parametrize(("module", "line"), lines())
def test_additions_of_a_later_version_are_ignored(module: str, line: str, read: Reader) -> None:
    known = wire.message_types(MODULES[module])
    later = {**json.loads(line), "v": 99, "mood": {"of": ["the", "day"]}}
    assert read(json.dumps(later), known) == read(line, known)


def test_the_hard_state_of_an_earlier_sidecar_is_read(read: Reader) -> None:
    hard_state = read((RECORDED / "v2-hard-state.json").read_text(), {"HardState": HardState})
    assert (hard_state.term, hard_state.voted_for) == (Term(1763716000, 2), "uid-9")
    assert hard_state.leader_snapshot.voters == ("uid-1", "uid-9")


def test_the_stored_order_of_an_earlier_sidecar_of_a_claimed_spare_is_read(read: Reader) -> None:
    order = read((RECORDED / "v2-order.json").read_text(), {"Order": Order})
    assert (order.shape.uid, order.key, order.take_over.env) == ("6d1f", "0a" * 32, {"LR": "0.1"})
    assert order.shape.in_place_max_per_pod is None


def test_the_present_version_is_recorded_completely() -> None:
    """The next version needs this fixture: no test would notice a change of a message without a recorded example."""
    for name, module in MODULES.items():
        lines = (RECORDED / f"v{VERSION}-{name}.jsonl").read_text().splitlines()
        directions = [getattr(module, tuple_name, ()) for tuple_name in dir(module) if tuple_name.startswith("TO_")]
        known = {cls.__name__ for direction in directions for cls in direction} or wire.message_types(module).keys()
        assert known <= {json.loads(line)["type"] for line in lines}, name


def test_each_recorded_version_has_an_example_of_each_message_that_it_knew() -> None:
    for path in RECORDED.glob("v*.jsonl"):
        types = [json.loads(line)["type"] for line in path.read_text().splitlines()]
        assert len(set(types)) >= 2, path.name
