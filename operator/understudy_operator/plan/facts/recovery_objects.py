"""The fields of a Recovery object, which describes one fault of a job to users; its name, and its JSON form.

The operator writes these objects and continues from status alone. So it reads them only to find out which exist, and
what is missing in them. Field by field, a value of another type counts as missing.
"""

import hashlib
from collections.abc import Mapping
from enum import Enum
from typing import Any

import msgspec

from understudy_operator.plan.facts.job import Job
from understudy_operator.plan.facts.ownership import API_VERSION, object_uid, owner_reference
from understudy_operator.plan.facts.status import (
    Count,
    Number,
    Record,
    Seconds,
    Signed,
    StrategyName,
    TierName,
    read_record,
    written,
)
from understudy_operator.plan.times.rfc3339 import Time, micro_time, parse_time
from understudy_protocol import pod as names
from understudy_protocol.enums import Fault

RECOVERY_KIND = "Recovery"
#: Of an object's name 253 characters are allowed, of a label's value 63.
NAME_CHARACTERS, LABEL_CHARACTERS, DIGEST = 220, 63, 5
NEVER = micro_time(0.0)


class Outcome(Enum):
    """How a recovery ended."""

    RECOVERED = "Recovered"
    FAILED = "Failed"
    SUSPENDED = "Suspended"
    UNKNOWN = "Unknown"


class RecoveryCause(Record, frozen=True):
    rank: Signed | None = None
    pod: str = ""
    node: str = ""
    exit_code: Signed | None = None
    signal: str | None = None
    message: str = ""
    traceback: str = ""


class ConsequenceFields(Record, frozen=True):
    rank: Signed | None = None
    pod: str = ""
    exit_code: Signed | None = None
    signal: str | None = None
    message: str = ""


class RecoveryFields(Record, frozen=True):
    """In the order of the CRD."""

    job_name: str = ""
    fault: Fault = Fault.PROCESS
    cause: RecoveryCause = RecoveryCause()
    consequences: tuple[ConsequenceFields, ...] = ()
    consequence_count: Count = 0
    strategy: StrategyName | None = None
    reason: str = ""
    round: Number | None = None
    outcome: Outcome | None = None
    detected_at: Time = NEVER
    running_at: Time | None = None
    resumed_at: Time | None = None
    pause_seconds: Seconds | None = None
    restored_from: TierName | None = None
    restore_reason: str = ""
    lost_steps: Number | None = None
    gpu_seconds_lost: Seconds | None = msgspec.field(default=None, name="gpuSecondsLost")
    rank_seconds_lost: Seconds | None = None


def recovery_path(namespace: str, name: str = "") -> str:
    """The path of a namespace's Recovery objects, or of one of them."""
    return f"/apis/{API_VERSION}/namespaces/{namespace}/recoveries" + (f"/{name}" if name else "")


def recovery_name(job: Job, identity: tuple[str, int]) -> str:
    """The same for each write of the fault. The names of a job's objects sort by time. identity: see `identified`."""
    at = micro_time(parse_time(identity[0]))
    digest = hashlib.sha256(f"{object_uid(job)}|{identity[0]}|{identity[1]}".encode()).hexdigest()[:DIGEST]
    date, time = at[:10].replace("-", ""), at[11:19].replace(":", "")
    return f"{job.name[:NAME_CHARACTERS].rstrip('-.')}-{date}-{time}-{digest}"


def recovery_manifest(job: Job, name: str, fields: RecoveryFields) -> dict[str, Any]:
    labels = {names.LABEL_JOB_UID: object_uid(job)}
    if len(job.name) <= LABEL_CHARACTERS:
        labels[names.LABEL_JOB] = job.name
    metadata = {
        "name": name,
        "namespace": job.namespace,
        "labels": labels,
        "ownerReferences": [owner_reference(job)],
    }
    return {"apiVersion": API_VERSION, "kind": RECOVERY_KIND, "metadata": metadata, **recovery_json(fields)}


def recovery_json(fields: RecoveryFields) -> dict[str, Any]:
    """The object's fields beside its metadata; required ones are there even if they have their default."""
    required = {"jobName": fields.job_name, "fault": fields.fault.value, "detectedAt": str(fields.detected_at)}
    return {**written(fields), **required}


def read_recovery(raw: Mapping[str, Any]) -> RecoveryFields:
    return read_record(raw, RecoveryFields)[0]
