"""An AdmissionReview -> its answer. Pure: no I/O, no clock.

Rules: a pod without the label is let through untouched, whatever the configuration has sent here. One that asks for
injection and cannot have it is refused with the reason: half of a training injected would wait for the other half for
ever. Everything else is let through, with what is worth knowing as a warning.
"""

import base64
import json
from collections.abc import Mapping
from typing import Any

from understudy_operator.plan.injection.json_patch import json_patch
from understudy_operator.plan.injection.pods import inject, wants_injection
from understudy_operator.plan.injection.settings import Objection
from understudy_protocol.logs import TEXT
from understudy_webhook.checks import objections

Raw = Mapping[str, Any]
API_VERSION, KIND = "admission.k8s.io/v1", "AdmissionReview"
#: Kubernetes cuts a warning that is longer.
WARNING_CHARACTERS = 256


class NoReview(ValueError):
    """What was sent is no AdmissionReview."""


def read_request(body: bytes) -> Raw:
    """Raises NoReview."""
    try:
        review = json.loads(body)
        request: Raw = review["request"]
        if review["apiVersion"] != API_VERSION or not isinstance(request["uid"], str):
            raise NoReview(f"expected an {KIND} of {API_VERSION}")
    except (ValueError, KeyError, TypeError) as error:
        raise NoReview(f"expected an {KIND} of {API_VERSION}: {error!r}") from error
    return request


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
    found, before = objections(kind, request.get("object") or {}), request.get("oldObject")
    if found and before:  # a job that has these errors may still be suspended, corrected and deleted
        known = objections(kind, before)
        found = [text for text in found if text not in known]
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
