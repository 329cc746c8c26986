"""The trainer's side of a gateway: the messages of a weight update, and the path through it to the server.

Rules: after one rejection no more messages of that update are sent, because a late call would make the weights of the
next update Uncertain. A rejected Begin does not count: that update has to be abandoned.
"""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Optional

from understudy_rollout.engines.http import (
    ASK_AGAIN_S,
    FENCE_HEADER,
    UPDATE_HEADER,
    EngineErrorAnswer,
    EngineServer,
    bearer,
)
from understudy_rollout.failures import AdmissionRefused, EngineUnreachable
from understudy_rollout.weights import NO_FENCE, Fence, Group, PreviousState, WeightsState, WeightsStatus

WEIGHTS, ENGINE = "/understudy/v1/weights", "/understudy/v1/engine"
CONFLICT = 409


class Gateway:
    """Admission through the gateway at this address. An adapter that gets it calls its server through it."""

    def __init__(self, url: str, token: str) -> None:
        self.server = EngineServer(url, bearer(token))
        self.engine_url = self.server.url + ENGINE
        self._token = token
        self._update, self._fence = "", NO_FENCE  # of the last update that was begun
        self._is_refused = False

    async def close(self, update: str, version: str, fence: Fence) -> Optional[PreviousState]:
        self._update, self._fence, self._is_refused = update, fence, False
        answer = await self._call_gateway("close", {"update": update, "version": version, "fence": list(fence)})
        return _previous_state(answer)

    async def known(self) -> Optional[WeightsStatus]:
        return _weights_status(json.loads(await self.server.get(WEIGHTS)))

    async def join(self, update: str, group: Group) -> None:
        await self._call_for_running_update("join", {"update": update, "group": asdict(group)})

    async def confirm(self, update: str) -> None:
        answer = json.loads(
            await self._call_for_running_update("confirm", {"update": update, "fence": list(self._fence)})
        )
        if answer["state"] != WeightsState.UPDATING.value:  # it still runs, but only to be undone
            raise AdmissionRefused(f"update {update} cannot be committed: {answer['reason']}")

    async def open(self, update: str) -> None:
        """Retries until the update's time limit: all tensors are transferred, and the gateway may be restarting."""
        while True:
            try:
                await self._call_for_running_update("open", {"update": update})
                return
            except EngineUnreachable:
                await asyncio.sleep(ASK_AGAIN_S)

    async def abandon(self, update: str, touched: bool, reason: str) -> None:
        await self._call_for_running_update("abandon", {"update": update, "touched": touched, "reason": reason})

    def call_headers(self) -> Mapping[str, str]:
        self._check_not_refused()
        headers = {"Proxy-Authorization": f"Bearer {self._token}"}
        if self._update:
            headers |= {UPDATE_HEADER: self._update, FENCE_HEADER: ".".join(map(str, self._fence))}
        return headers

    def refused(self) -> None:
        self._is_refused = True

    async def _call_for_running_update(self, what: str, body: Mapping[str, Any]) -> str:
        self._check_not_refused()
        try:
            return await self._call_gateway(what, body)
        except AdmissionRefused:
            self._is_refused = True
            raise

    def _check_not_refused(self) -> None:
        if self._is_refused:
            raise AdmissionRefused(f"{self.server.url}: the gateway has rejected update {self._update}: no more calls")

    async def _call_gateway(self, what: str, body: Mapping[str, Any]) -> str:
        try:
            return await self.server.post(f"{WEIGHTS}/{what}", body)
        except EngineErrorAnswer as error:
            if error.status == CONFLICT:
                raise AdmissionRefused(str(error)) from error
            raise


def _previous_state(answer: str) -> Optional[PreviousState]:
    fields = json.loads(answer)["previous"]
    if fields is None:
        return None  # the server was lost meanwhile
    group = fields["group"]
    return PreviousState(_weights_status(fields["weights"]), None if group is None else Group(**group))


def _weights_status(fields: Any) -> WeightsStatus:
    return WeightsStatus(WeightsState(fields["state"]), fields["version"], fields["reason"])
