"""The messages that an update sends to a gateway: JSON bodies become events, and a wrong one is named.

Rules: the size is checked before the body is parsed. Nothing here changes state.
"""

import json
from typing import Any, Union

from understudy_rollout.weights import Abandon, Begin, Commit, Fence, version_of

BODY_BYTES = 64 * 1024
_REASON_CHARACTERS = 4096
_ID_CHARACTERS = 128


def begin(body: bytes) -> Begin:
    """Raises ValueError, as the others do."""
    told = _object(body, {"update", "version", "fence"})
    return Begin(_update(told), version_of(told["version"]), _fence(told["fence"]))


def commit(body: bytes) -> Commit:
    return Commit(_update(_object(body, {"update"})))


def abandon(body: bytes) -> Abandon:
    told = _object(body, {"update", "touched", "reason"})
    if not isinstance(told["touched"], bool) or not isinstance(told["reason"], str):
        raise ValueError("expected a boolean 'touched' and a text 'reason'")
    return Abandon(_update(told), told["touched"], told["reason"][:_REASON_CHARACTERS])


def _object(body: bytes, keys: set[str]) -> dict[str, Any]:
    if len(body) > BODY_BYTES:
        raise ValueError(f"expected at most {BODY_BYTES} bytes")
    try:
        told = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"expected JSON: {error}") from error
    if not isinstance(told, dict) or not keys <= told.keys():
        raise ValueError(f"expected a JSON object with {', '.join(sorted(keys))}")
    return told


def _update(told: dict[str, Any]) -> str:
    update: Union[object, str] = told["update"]
    if not isinstance(update, str) or not 0 < len(update) <= _ID_CHARACTERS or not update.isprintable():
        raise ValueError(f"update: expected an id of 1 to {_ID_CHARACTERS} printable characters")
    return update


def _fence(told: object) -> Fence:
    numbers = told if isinstance(told, list) else []
    if len(numbers) != 3 or any(isinstance(x, bool) or not isinstance(x, int) or x < 0 for x in numbers):
        raise ValueError(f"fence: expected epoch, term and round as three numbers; got {told!r:.80}")
    return (numbers[0], numbers[1], numbers[2])
