"""An AdmissionReview -> its answer. Pure: no I/O, no clock.

Rules: a pod without the label is let through untouched, whatever the configuration has sent here. One that asks for
injection and cannot have it is refused with the reason: half of a training injected would wait for the other half for
ever. Everything else is let through, with what is worth knowing as a warning.

A review may come from anybody. Before it is parsed, its values are counted: a list or an object takes more than
twenty times the memory of its brackets. After that its depth is limited, because functions that copy and compare
objects call themselves for each level.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from understudy_operator.observe.json_size import values_in
from understudy_operator.plan.injection.json_patch import json_patch
from understudy_operator.plan.injection.pods import inject, wants_injection
from understudy_operator.plan.injection.settings import Objection
from understudy_protocol.logs import TEXT
from understudy_webhook.object_validation import find_objections

Raw = Mapping[str, Any]
API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
#: Kubernetes cuts a warning that is longer.
WARNING_CHARACTERS = 256
#: A pod has some hundreds, a large TrainingJob with its managedFields some thousands.
MOST_VALUES = 250_000
#: The managedFields of a TrainingJob have some 25 levels.
MOST_LEVELS = 100


class NoReview(ValueError):
    """What was sent is no AdmissionReview, or is larger than any that the API server sends."""


class _Kind(msgspec.Struct):
    kind: str = ""


class _Request(msgspec.Struct):
    uid: str
    kind: _Kind
    namespace: str = ""
    name: str = ""
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = msgspec.field(default=None, name="oldObject")


class _Review(msgspec.Struct):
    api_version: str = msgspec.field(name="apiVersion")
    request: _Request


_DECODER = msgspec.json.Decoder(_Review)


def read_request(body: bytes) -> Raw:
    """Raises NoReview."""
    values = values_in(body)
    if values > MOST_VALUES:
        raise NoReview(f"the review has {values} values; at most {MOST_VALUES} are read")
    try:
        review = _DECODER.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise NoReview(f"expected an {KIND} of {API_VERSION}: {error}") from None
    if review.api_version != API_VERSION:
        raise NoReview(f"expected an {KIND} of {API_VERSION}, got {review.api_version[:100]}")
    request = review.request
    for value in (request.object, request.old_object):
        if is_deeper(value, MOST_LEVELS):
            raise NoReview(f"the object has more than {MOST_LEVELS} levels")
    return {
        "uid": request.uid,
        "kind": {"kind": request.kind.kind},
        "namespace": request.namespace,
        "name": request.name,
        "object": request.object,
        "oldObject": request.old_object,
    }


def is_deeper(value: Any, levels: int) -> bool:
    """Whether lists and objects are inside of each other for more levels."""
    inside: list[Any] = [value]
    for _ in range(levels + 1):
        inside = [
            x
            for holder in inside
            if isinstance(holder, dict | list)
            for x in (holder.values() if isinstance(holder, dict) else holder)
        ]
        if not inside:
            return False
    return True


def mutate(request: Raw, sidecar_image: str, log_format: str = TEXT) -> dict[str, Any]:
    """The answer to a pod that is to be created."""
    pod = request.get("object") or {}
    if request.get("kind", {}).get("kind") != "Pod" or not wants_injection(pod.get("metadata", {})):
        return _allowed(request)
    try:
        injection = inject(pod, sidecar_image, log_format)
    except Objection as objection:
        return _refused(request, f"understudy cannot inject this pod: {objection}")
    return _allowed(request, json_patch(pod, injection.pod), injection.warnings)


def validate(request: Raw) -> dict[str, Any]:
    """The answer to a job that is to be created or changed."""
    kind = request.get("kind", {}).get("kind", "")
    found, before = find_objections(kind, request.get("object") or {}), request.get("oldObject")
    if found and before:  # a job that has these errors may still be suspended, corrected and deleted
        known_before = find_objections(kind, before)
        found = [text for text in found if text not in known_before]
    return _refused(request, "; ".join(found)) if found else _allowed(request)


def _allowed(request: Raw, patch: list[dict[str, Any]] | None = None, warnings: tuple[str, ...] = ()) -> dict[str, Any]:
    response: dict[str, Any] = {"uid": request["uid"], "allowed": True}
    if patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(json.dumps(patch, separators=(",", ":")).encode()).decode()
    if warnings:
        response["warnings"] = [f"understudy: {text}"[:WARNING_CHARACTERS] for text in warnings]
    return _review(response)


def _refused(request: Raw, message: str) -> dict[str, Any]:
    status = {"code": 422, "reason": "Invalid", "message": message}
    return _review({"uid": request["uid"], "allowed": False, "status": status})


def _review(response: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": API_VERSION, "kind": KIND, "response": response}
