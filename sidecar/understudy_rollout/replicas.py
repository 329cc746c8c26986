"""The rollout servers of the TrainingJob in which this process trains, reached through `rollouts.gateway`.

    replicas = replicas_of_this_job(SglangEngine, ranks=8)
    …
    await until_up(replicas)  # before each update: servers may have just been recreated
    async with WeightUpdate(replicas, …):

Each Job of `rollouts.replicatedJobs` is one replica with the Job's name. Its server is in pod 0 of the Job, behind its
gateway. Needs aiohttp, as the gateway's client does.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Callable

from understudy_rollout.engine import Engine, Replica
from understudy_rollout.engines.http import EngineErrorAnswer
from understudy_rollout.failures import EngineUnreachable, StepTimedOut
from understudy_rollout.gateway import Gateway

HEALTH = "/health"  # gateways forward it in every state of the weights
LOOK_EVERY_S = 0.5
ENV_ROLLOUTS = "UNDERSTUDY_ROLLOUTS"  # also in understudy_protocol.pod
ENV_TOKEN_FILE = "UNDERSTUDY_ROLLOUT_TOKEN_FILE"  # noqa: S105


class NoRollouts(LookupError):
    """This process is not a worker of a job with rollouts and gateways."""


def replicas_of_this_job(
    engine: Callable[[Gateway], Engine], ranks: int = 1, environment: Mapping[str, str] = os.environ
) -> list[Replica]:
    """engine: creates the adapter of a server from its gateway. Raises NoRollouts."""
    missing = [name for name in (ENV_ROLLOUTS, ENV_TOKEN_FILE) if not environment.get(name)]
    if missing:
        raise NoRollouts(f"{', '.join(missing)} not set: expected a TrainingJob with rollouts: {{gateway: …}}")
    settings = json.loads(environment[ENV_ROLLOUTS])
    token = Path(environment[ENV_TOKEN_FILE]).read_text().strip()
    replicas = []
    for group, number in settings["rollouts"].items():
        for index in range(number):
            name = f"{settings['job']}-{group}-{index}"
            host = f"http://{name}-0.{settings['domain']}"
            gateway = Gateway(f"{host}:{settings['gatewayPort']}", token)
            replicas.append(Replica(name, engine(gateway), ranks, gateway))
    return replicas


async def until_up(replicas: Iterable[Replica], limit_s: float = 600.0, health: str = HEALTH) -> None:
    """Wait until every server passes its health check through its gateway. Then each replica has its gateway's state.

    Raises StepTimedOut with the last answer.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s

    async def up(replica: Replica, gateway: Gateway) -> None:
        while True:
            try:
                await asyncio.wait_for(gateway.server.get(health), max(LOOK_EVERY_S, end - loop.time()))
                return await replica.refresh()
            except (EngineErrorAnswer, EngineUnreachable, asyncio.TimeoutError) as error:
                if loop.time() >= end:
                    raise StepTimedOut(f"{gateway.server.url}: not up within {limit_s:g} s: {error}") from error
            await asyncio.sleep(LOOK_EVERY_S)

    await asyncio.gather(*(up(x, x.admission) for x in replicas if isinstance(x.admission, Gateway)))
