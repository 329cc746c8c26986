"""The operator's calls to Warm spares that a job has claimed: it sends each spare its job, until the spare accepts.

Runs until closed. Calls to one spare follow one another, PAUSE_S apart. When a spare accepts, `on_change` is called.
`adoptions` has the state of each claimed spare, and for a while of spares that did not accept.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from understudy_operator.plan.facts.pool_facts import Adoption
from understudy_operator.plan.intents import AdoptSpare
from understudy_operator.plan.pool.adopting import ADOPT_WITHIN_S, REPLACE_FOR_S
from understudy_operator.runtime.line import CONNECT_S, FAILURES, Keys, Share, dialed
from understudy_protocol import adoption, wire
from understudy_protocol.adoption import Adopt, Adopted
from understudy_protocol.handshake import Call, HandshakeCaller, Role
from understudy_protocol.order import Order

PAUSE_S = 0.2
ANSWER_BYTES = 1 << 16
REASON_CHARACTERS = 200
_ADOPTION = wire.message_types(adoption)
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class AdoptionKeys:
    """The key of the pool, with which the operator calls the spare, and the key of the job, which the spare gets."""

    line: Keys
    job: str  # 64 hexadecimal digits


class Adopter:
    def __init__(self, on_change: Callable[[], None], wall: Callable[[], float]) -> None:
        self._on_change, self._wall = on_change, wall
        self._wanted: dict[str, tuple[AdoptSpare, AdoptionKeys]] = {}  # by pod uid, as the next two
        self._adoptions: dict[str, Adoption] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}

    @property
    def adoptions(self) -> Mapping[str, Adoption]:
        return dict(self._adoptions)

    def follow(self, wanted: Sequence[tuple[AdoptSpare, AdoptionKeys]]) -> None:
        """Call these spares, and no others."""
        self._wanted = {intent.pod_uid: (intent, keys) for intent, keys in wanted}
        for uid in self._tasks.keys() - self._wanted.keys():
            self._tasks.pop(uid).cancel()
        for uid in self._wanted:
            current = self._adoptions.setdefault(uid, Adoption(self._wall()))
            task = self._tasks.get(uid)
            if not current.adopted and (task is None or task.done()):
                self._tasks[uid] = asyncio.create_task(self._adopt_until_accepted(uid), name=f"adopt {uid}")
        self._forget_others()

    async def close(self) -> None:
        tasks, self._tasks, self._wanted, self._adoptions = list(self._tasks.values()), {}, {}, {}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _forget_others(self) -> None:
        """Spares that did not accept stay for a while."""
        oldest = self._wall() - ADOPT_WITHIN_S - REPLACE_FOR_S
        for uid, current in list(self._adoptions.items()):
            if uid not in self._wanted and (current.adopted or current.since < oldest):
                del self._adoptions[uid]

    async def _adopt_until_accepted(self, uid: str) -> None:
        while uid in self._wanted:
            intent, keys = self._wanted[uid]
            try:
                async with asyncio.timeout(CONNECT_S):
                    failure = await adopt(intent, keys)
            except FAILURES as error:
                failure = f"the operator could not send the job to {intent.address}: {error!r}"
            self._adoptions[uid] = replace(self._adoptions[uid], adopted=not failure, failure=failure)
            if not failure:
                log.info("pod %s at %s has accepted job %s", uid, intent.address, intent.shape.name)
                self._on_change()
                return
            await asyncio.sleep(PAUSE_S)


async def adopt(intent: AdoptSpare, keys: AdoptionKeys) -> str:
    """One call. Returns why the spare was not adopted; "" if it was. Raises one of FAILURES."""
    call = Call("", intent.address)
    caller = HandshakeCaller(keys.line.membership, Role.CLAIMANT, intent.pool_uid, call, keys.line.operator)
    async with dialed(intent.address, Share()) as line:
        await line.begin(caller, intent.pod_uid, ANSWER_BYTES)
        await line.send(Adopt(Order(intent.shape, intent.coordinator, keys.job, intent.take_over)))
        answer = await line.receive(_ADOPTION)
    match answer:
        case Adopted(job_uid) if job_uid == intent.shape.uid:
            return ""
        case Adopted(job_uid):
            return f"it already belongs to job {job_uid[:64]}"
        case _:
            return f"it answered with {answer!r}"[:REASON_CHARACTERS]
