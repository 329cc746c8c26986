"""What a replica that takes the lead has to know before it acts, whatever its watches have told it."""

import asyncio
import random
from collections.abc import Callable
from unittest import mock

from tests.simulation_operator.clockwork import run_simulated
from tests.simulation_operator.run import played
from tests.simulation_operator.world import World
from understudy_operator import resync

ACT_S = 60.0


async def until(world: World, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(ACT_S):  # of simulated time
        while not holds():  # noqa: ASYNC110 (what it waits for tells nobody)
            await asyncio.sleep(0.001)


def test_a_new_leader_knows_what_the_previous_one_has_reported_last() -> None:
    worlds: list[World] = []

    async def main() -> None:
        # given two replicas, and a job of two pods that is about to begin: it has a coordinator
        world = World(random.Random("takeover"), nodes=4, replicas=2)
        worlds.append(world)
        world.apply("job", 2, 0)
        (training,) = world.trainings.values()
        await until(world, lambda: "coordinator" in ((world.job("job") or {}).get("status") or {}))
        (leader,) = [process for process in world.alive() if process.operator and process.operator.leads()]
        (other,) = [process for process in world.alive() if process is not leader]
        # when all that follows is lost on its way to the one that does not lead: it begins, and loses a pod
        world.unwatch(other)
        await until(world, lambda: training.round == 0)
        await asyncio.sleep(5.0)
        known = len(world.server.of("pods"))
        mate = next(
            x for x in world.cluster.running(training.job_uid) if x["metadata"]["uid"] != training.coordinator_uid
        )
        world.cluster.end(mate, None)
        # and the leader dies as soon as it has made another pod, which takes the place
        await until(world, lambda: len(world.server.of("pods")) > known)
        world.kill(leader)
        await until(world, lambda: training.round == 1)
        # then the other one takes the training for what it is, and deletes nobody that trains
        assert other.operator is not None
        assert not other.operator.leads()
        await asyncio.sleep(ACT_S)
        assert other.operator.leads()
        assert world.violations == []
        assert len(world.cluster.running(training.job_uid)) == 2
        assert training.round == 1

    with played(worlds), mock.patch.object(resync, "RESYNC_S", 10 * ACT_S):
        run_simulated(main())
