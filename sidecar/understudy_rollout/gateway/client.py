"""The trainer's end of a gateway: what a weight update tells it."""

from understudy_rollout.engines.http import Refused, Server, bearer
from understudy_rollout.failures import AdmissionRefused
from understudy_rollout.weights import Fence

WEIGHTS = "/understudy/v1/weights"


class Gateway:
    """Admission through the gateway at this address."""

    def __init__(self, url: str, token: str) -> None:
        self.server = Server(url, bearer(token))

    async def close(self, update: str, version: str, fence: Fence) -> None:
        await self._tell("close", {"update": update, "version": version, "fence": list(fence)})

    async def open(self, update: str) -> None:
        await self._tell("open", {"update": update})

    async def abandon(self, update: str, touched: bool, reason: str) -> None:
        await self._tell("abandon", {"update": update, "touched": touched, "reason": reason})

    async def _tell(self, what: str, body: dict[str, object]) -> None:
        try:
            await self.server.post(f"{WEIGHTS}/{what}", body)
        except Refused as error:
            if error.status == 409:
                raise AdmissionRefused(str(error)) from error
            raise
