"""A Kubernetes Event on an object of ours."""

import logging
import os
from datetime import UTC, datetime
from typing import Protocol

from understudy_operator.apply.api import Api, ApiError
from understudy_operator.apply.pace import Pace
from understudy_operator.plan.intents import Event
from understudy_operator.plan.ownership import API_VERSION

log = logging.getLogger(__name__)


class Owner(Protocol):
    """A TrainingJob or a HotSparePool."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


async def send_event(api: Api, pace: Pace, kind: str, owner: Owner, event: Event) -> None:
    """One that is refused is logged, and no more."""
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{owner.name}-", "namespace": owner.namespace},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": event.type,
        "reason": event.reason,
        "action": event.reason,
        "note": event.message[:1024],
        "reportingController": "understudy.dev/operator",
        "reportingInstance": os.environ.get("HOSTNAME", "understudy-operator"),
        "regarding": {
            "apiVersion": API_VERSION,
            "kind": kind,
            "name": owner.name,
            "namespace": owner.namespace,
            "uid": owner.uid,
        },
    }
    await pace.turn()
    try:
        await api.create(f"/apis/events.k8s.io/v1/namespaces/{owner.namespace}/events", body)
    except ApiError as error:
        log.warning("%s %s/%s: event %s was refused: %s", kind, owner.namespace, owner.name, event.reason, error)
