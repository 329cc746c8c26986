"""A Kubernetes Event on an object, ours or one whose pods are injected."""

import logging
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Protocol

from understudy_operator.apply.api import NO_ANSWER, Api, ApiError
from understudy_operator.apply.pace import Pace
from understudy_operator.observe.store import Raw
from understudy_operator.plan.intents import Event

log = logging.getLogger(__name__)


class Owner(Protocol):
    """A TrainingJob or a HotSparePool."""

    @property
    def namespace(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def uid(self) -> str: ...


def event_of(regarding: Mapping[str, str], event: Event) -> Raw:
    """The event as Kubernetes keeps it. regarding: what refers to the object."""
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"generateName": f"{regarding['name']}-", "namespace": regarding["namespace"]},
        "eventTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        "type": event.type,
        "reason": event.reason,
        "action": event.reason,
        "note": event.message[:1024],
        "reportingController": "understudy.dev/operator",
        "reportingInstance": os.environ.get("HOSTNAME", "understudy-operator"),
        "regarding": regarding,
    }


async def send_event(api: Api, pace: Pace, regarding: Mapping[str, str], event: Event) -> None:
    """One that is refused, or has no answer, is logged, and no more: nothing waits for it."""
    kind, namespace, name = regarding["kind"], regarding["namespace"], regarding["name"]
    await pace.turn()
    try:
        await api.create(f"/apis/events.k8s.io/v1/namespaces/{namespace}/events", event_of(regarding, event))
    except (ApiError, *NO_ANSWER) as error:
        log.warning("%s %s/%s: event %s was not written: %r", kind, namespace, name, event.reason, error)
