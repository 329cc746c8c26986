"""The state that a replica needs before it acts as the new leader, whatever its watches have reported."""

import asyncio
import random
from collections.abc import Callable
from unittest import mock

from tests.simulation_operator.clockwork import run_simulated
from tests.simulation_operator.run import played
from tests.simulation_operator.world import World
from understudy_operator.observe import resync

ACT_S = 60.0


async def until(world: World, holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(ACT_S):  # of simulated time
        while not holds():  # noqa: ASYNC110 (what it waits for tells nobody)
            await asyncio.sleep(0.001)


def test_a_new_leader_knows_the_last_status_of_the_previous_one() -> None:
    worlds: list[World] = []

    async def main() -> None:
        # given two replicas, and a job of two pods that is about to start, with a coordinator
        world = World(random.Random("takeover"), nodes=4, replicas=2)
        worlds.append(world)
        world.apply("job", 2, 0)
        (training,) = world.trainings.values()
        await until(world, lambda: "coordinator" in ((world.job("job") or {}).get("status") or {}))
        (leader,) = [process for process in world.alive() if process.operator and process.operator.leads()]
        (other,) = [process for process in world.alive() if process is not leader]
        # when the standby replica misses all following events: the job starts, and loses a pod
        world.unwatch(other)
        await until(world, lambda: training.round == 0)
        await asyncio.sleep(5.0)
        known = len(world.server.of("pods"))
        mate = next(
            x for x in world.cluster.running(training.job_uid) if x["metadata"]["uid"] != training.coordinator_uid
        )
        world.cluster.end(mate, None)
        # and the leader is killed as soon as it has created another pod, which takes the rank
        await until(world, lambda: len(world.server.of("pods")) > known)
        world.kill(leader)
        await until(world, lambda: training.round == 1)
        # then the other replica knows that the job trains, and deletes no training pod
        assert other.operator is not None
        assert not other.operator.leads()
        await asyncio.sleep(ACT_S)
        assert other.operator.leads()
        assert world.violations == []
        assert len(world.cluster.running(training.job_uid)) == 2
        assert training.round == 1

    with played(worlds), mock.patch.object(resync, "RESYNC_S", 10 * ACT_S):
        run_simulated(main())
