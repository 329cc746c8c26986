"""The rollout servers of the TrainingJob that this process trains in, as its `rollouts.gateway` has them.

    replicas = replicas_of_this_job(SglangEngine, ranks=8)

Each Job of `rollouts.replicatedJobs` is one replica, named as the Job is: its server is asked at pod 0 of it. Needs
aiohttp, as the gateway's client does.
"""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Callable

from understudy_rollout.engine import Engine, Replica
from understudy_rollout.gateway import Gateway

ENV_ROLLOUTS = "UNDERSTUDY_ROLLOUTS"  # understudy_protocol.pod has these too
ENV_TOKEN_FILE = "UNDERSTUDY_ROLLOUT_TOKEN_FILE"  # noqa: S105


class NoRollouts(LookupError):
    """This process is not a worker of a job with rollouts and gateways."""


def replicas_of_this_job(
    engine: Callable[[str], Engine], ranks: int = 1, environment: Mapping[str, str] = os.environ
) -> list[Replica]:
    """engine: makes the adapter of the server at an address. Raises NoRollouts."""
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
            replicas.append(Replica(name, engine(f"{host}:{told['enginePort']}"), ranks, gateway))
    return replicas
