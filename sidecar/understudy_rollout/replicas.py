"""The rollout servers of the TrainingJob that this process trains in, as its `rollouts.gateway` has them.

    replicas = replicas_of_this_job(SglangEngine, ranks=8)
    …
    await until_up(replicas)  # before each update: servers may just be made anew
    async with WeightUpdate(replicas, …):

Each Job of `rollouts.replicatedJobs` is one replica, named as the Job is: its server is asked at pod 0 of it, through
its gateway. Needs aiohttp, as the gateway's client does.
"""

import asyncio
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Callable

from understudy_rollout.engine import Engine, Replica
from understudy_rollout.engines.http import Refused
from understudy_rollout.failures import EngineUnreachable, StepTimedOut
from understudy_rollout.gateway import Gateway

HEALTH = "/health"  # which gateways pass on, whatever the weights are
LOOK_EVERY_S = 0.5
ENV_ROLLOUTS = "UNDERSTUDY_ROLLOUTS"  # understudy_protocol.pod has these too
ENV_TOKEN_FILE = "UNDERSTUDY_ROLLOUT_TOKEN_FILE"  # noqa: S105


class NoRollouts(LookupError):
    """This process is not a worker of a job with rollouts and gateways."""


def replicas_of_this_job(
    engine: Callable[[Gateway], Engine], ranks: int = 1, environment: Mapping[str, str] = os.environ
) -> list[Replica]:
    """engine: makes the adapter of a server, which is asked through its gateway. Raises NoRollouts."""
    missing = [name for name in (ENV_ROLLOUTS, ENV_TOKEN_FILE) if not environment.get(name)]
    if missing:
        raise NoRollouts(f"{', '.join(missing)} not set: expected a TrainingJob with rollouts: {{gateway: …}}")
    told = json.loads(environment[ENV_ROLLOUTS])
    token = Path(environment[ENV_TOKEN_FILE]).read_text().strip()
    replicas = []
    for group, number in told["rollouts"].items():
        for index in range(number):
            name = f"{told['job']}-{group}-{index}"
            host = f"http://{name}-0.{told['domain']}"
            gateway = Gateway(f"{host}:{told['gatewayPort']}", token)
            replicas.append(Replica(name, engine(gateway), ranks, gateway))
    return replicas


async def until_up(replicas: Iterable[Replica], limit_s: float = 600.0, health: str = HEALTH) -> None:
    """Until every server answers its health check, through its gateway. Then each replica has what its gateway knows.

    Raises StepTimedOut with the last answer.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + limit_s

    async def up(replica: Replica, gateway: Gateway) -> None:
        while True:
            try:
                await asyncio.wait_for(gateway.server.get(health), max(LOOK_EVERY_S, end - loop.time()))
                return await replica.refresh()
            except (Refused, EngineUnreachable, asyncio.TimeoutError) as error:
                if loop.time() >= end:
                    raise StepTimedOut(f"{gateway.server.url}: not up within {limit_s:g} s: {error}") from error
            await asyncio.sleep(LOOK_EVERY_S)

    await asyncio.gather(*(up(x, x.admission) for x in replicas if isinstance(x.admission, Gateway)))
