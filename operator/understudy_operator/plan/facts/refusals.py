"""Why the API server rejected a write, and the consequence for the job.

Rules: an error in the manifest itself is permanent: the job is Invalid. Every other reason (a quota, a webhook, a
namespace that is being deleted, missing rights, a name that another object has) is outside the job and may pass: the
job is Blocked, and the operator retries its writes.
"""

from dataclasses import dataclass
from enum import Enum


class RefusalKind(Enum):
    """The value is the condition's reason."""

    MANIFEST = "Rejected"
    QUOTA = "QuotaExceeded"
    ADMISSION = "AdmissionDenied"
    WEBHOOK = "WebhookUnavailable"
    NAMESPACE = "NamespaceTerminating"
    FORBIDDEN = "Forbidden"
    NAME = "NameTaken"
    SERVER = "ServerError"


#: In the rejection of a Service whose ClusterIP another one has.
ADDRESS_TAKEN = "already allocated"
#: The API server quotes values of the manifest, which may be 1 MB long.
MESSAGE_CHARACTERS = 2000
_QUOTA = ("exceeded quota", "unknown for quota", "insufficient quota")


@dataclass(frozen=True)
class Refusal:
    message: str
    kind: RefusalKind = RefusalKind.MANIFEST
    key: str = ""  # the rejected intent: intents.intent_key()

    @property
    def is_lasting(self) -> bool:
        return self.kind is RefusalKind.MANIFEST


def read_refusal(status: int, message: str, key: str = "") -> Refusal | None:
    """The refusal in a response with that HTTP status; None for other errors, such as a conflict."""
    kind = _refusal_kind(status, message)
    cut = message if len(message) <= MESSAGE_CHARACTERS else f"{message[: MESSAGE_CHARACTERS - 1]}…"
    return None if kind is None else Refusal(cut, kind, key)


def _refusal_kind(status: int, message: str) -> RefusalKind | None:
    if "failed calling webhook" in message or "failed to call webhook" in message:
        return RefusalKind.WEBHOOK
    if "admission webhook" in message or "ValidatingAdmissionPolicy" in message:
        return RefusalKind.ADMISSION
    if status == 403 and any(words in message for words in _QUOTA):
        return RefusalKind.QUOTA
    if status == 403 and "being terminated" in message:
        return RefusalKind.NAMESPACE
    if status == 403:
        return RefusalKind.FORBIDDEN
    if status in (400, 413, 422):
        return RefusalKind.MANIFEST
    return RefusalKind.SERVER if status >= 500 else None
