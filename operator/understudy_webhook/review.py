"""An AdmissionReview -> its answer. Pure: no I/O, no clock.

Rules: a pod without the label is allowed unchanged, even if the configuration sends it here. A pod that asks for
injection and cannot get it is rejected with the reason, because half of a training would wait for the other half
forever. All other objects are allowed, with warnings if there are any.

A review may come from any caller. Its values are counted before it is parsed, because a list or an object takes more
than twenty times the memory of its brackets. Then its depth is limited, because the functions that copy and compare
objects are recursive.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

import msgspec

from understudy_operator.plan.facts.sidecar_settings import DEFAULT_SIDECAR_SETTINGS, SidecarSettings
from understudy_operator.plan.injection.injected_pods import inject
from understudy_operator.plan.injection.settings import Objection, wants_injection
from understudy_operator.runtime.json_size import values_in
from understudy_webhook.object_validation import find_objections

Raw = Mapping[str, Any]
API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
#: Kubernetes cuts longer warnings.
WARNING_CHARACTERS = 256
#: A pod has a few hundred values, a large TrainingJob with its managedFields a few thousand.
MOST_VALUES = 250_000
#: The managedFields of a TrainingJob have about 25 levels.
MOST_LEVELS = 100
#: The fields of a pod and of its containers that injection changes.
_POD = ("metadata/labels", "metadata/annotations", "spec/restartPolicy", "spec/volumes", "spec/initContainers")
_CONTAINER = ("command", "env", "volumeMounts", "ports")


class NoReview(ValueError):
    """The body is not an AdmissionReview, or is larger than any that the API server sends."""


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
    """Whether lists and objects are nested more deeply than this."""
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


def mutate(
    request: Raw, sidecar_image: str, sidecar_settings: SidecarSettings = DEFAULT_SIDECAR_SETTINGS
) -> dict[str, Any]:
    """The answer to the creation of a pod. The pod has no name yet, so its ports depend on the request."""
    pod = request.get("object") or {}
    if request.get("kind", {}).get("kind") != "Pod":
        return _allowed(request)
    try:
        if not wants_injection(pod.get("metadata", {})):
            return _allowed(request)
        injection = inject(pod, sidecar_image, sidecar_settings, str(request["uid"]))
    except Objection as objection:
        return _refused(request, f"understudy cannot inject this pod: {objection}")
    return _allowed(request, json_patch(pod, injection.pod), injection.warnings)


def validate(request: Raw) -> dict[str, Any]:
    """The answer to the creation or change of a job."""
    kind = request.get("kind", {}).get("kind", "")
    found, before = find_objections(kind, request.get("object") or {}), request.get("oldObject")
    if found and before:  # an existing job with these errors may be suspended, corrected and deleted
        known_before = find_objections(kind, before)
        found = [text for text in found if text not in known_before]
    return _refused(request, "; ".join(found)) if found else _allowed(request)


def json_patch(before: Raw, after: Raw) -> list[dict[str, Any]]:
    """The difference as a JSON patch (RFC 6902): whole values at the few paths that injection changes."""
    operations = list[dict[str, Any]]()
    for path in _POD:
        parent, _, field = path.partition("/")
        if before[parent].get(field) != after[parent].get(field):
            operations.append({"op": "add", "path": f"/{path}", "value": after[parent][field]})
    pairs = zip(before["spec"]["containers"], after["spec"]["containers"], strict=True)
    for number, (old, new) in enumerate(pairs):
        for field in _CONTAINER:
            if old.get(field) != new.get(field):
                operations.append({"op": "add", "path": f"/spec/containers/{number}/{field}", "value": new[field]})
    return operations


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
