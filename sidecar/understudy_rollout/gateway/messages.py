"""The messages that an update sends to a gateway: parses bodies and headers into events, and rejects wrong ones by
name.

    close, join, confirm, open, abandon   a JSON body each
    a call to the server                  Understudy-Update and Understudy-Fence beside the server's own headers

Rules: the size is checked before the body is parsed. This module changes no state.
"""

import json
from collections.abc import Mapping
from typing import Any, Union

from understudy_rollout.engines.http import FENCE_HEADER, UPDATE_HEADER
from understudy_rollout.weights import Abandon, Begin, Commit, Fence, Group, JoinGroup, UpdateCall, version_of

BODY_BYTES = 64 * 1024
_REASON_CHARACTERS = 4096
_ID_CHARACTERS = 128


def begin(body: bytes) -> Begin:
    """Raises ValueError, as the other functions do."""
    fields = _object(body, {"update", "version", "fence"})
    return Begin(_update(fields), version_of(fields["version"]), _fence(fields["fence"]))


def join(body: bytes) -> JoinGroup:
    fields = _object(body, {"update", "group"})
    group = fields["group"]
    texts, numbers = ("address", "name", "backend"), ("port", "world_size")
    if not isinstance(group, dict) or set(group) != {*texts, *numbers}:
        raise ValueError(f"group: expected a JSON object with {', '.join((*texts, *numbers))}")
    if not all(isinstance(group[x], str) for x in texts) or not all(isinstance(group[x], int) for x in numbers):
        raise ValueError(f"group: expected texts as {', '.join(texts)}, and numbers as {', '.join(numbers)}")
    return JoinGroup(_update(fields), Group(**group))


def confirm(body: bytes) -> UpdateCall:
    fields = _object(body, {"update", "fence"})
    return UpdateCall(_update(fields), _fence(fields["fence"]))


def call(headers: Mapping[str, str]) -> UpdateCall:
    update, fence = headers.get(UPDATE_HEADER, ""), headers.get(FENCE_HEADER, "").split(".")
    if not update:
        raise ValueError(f"{UPDATE_HEADER}: expected the id of the update that runs; no other may change the server")
    if not all(part.isascii() and part.isdigit() and len(part) < 20 for part in fence):
        raise ValueError(f"{FENCE_HEADER}: expected epoch.term.round")
    return UpdateCall(_update({"update": update}), _fence([int(part) for part in fence]))


def commit(body: bytes) -> Commit:
    return Commit(_update(_object(body, {"update"})))


def abandon(body: bytes) -> Abandon:
    fields = _object(body, {"update", "touched", "reason"})
    if not isinstance(fields["touched"], bool) or not isinstance(fields["reason"], str):
        raise ValueError("expected a boolean 'touched' and a text 'reason'")
    return Abandon(_update(fields), fields["touched"], fields["reason"][:_REASON_CHARACTERS])


def _object(body: bytes, keys: set[str]) -> dict[str, Any]:
    if len(body) > BODY_BYTES:
        raise ValueError(f"expected at most {BODY_BYTES} bytes")
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON: {error}") from error
    if not isinstance(fields, dict) or not keys <= fields.keys():
        raise ValueError(f"expected a JSON object with {', '.join(sorted(keys))}")
    return fields


def _update(fields: dict[str, Any]) -> str:
    update: Union[object, str] = fields["update"]
    if not isinstance(update, str) or not 0 < len(update) <= _ID_CHARACTERS or not update.isprintable():
        raise ValueError(f"update: expected an id of 1 to {_ID_CHARACTERS} printable characters")
    return update


def _fence(fields: object) -> Fence:
    numbers = fields if isinstance(fields, list) else []
    if len(numbers) != 3 or any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in numbers):
        raise ValueError(f"fence: expected epoch, term and round as three numbers; got {fields!r:.80}")
    return (numbers[0], numbers[1], numbers[2])
