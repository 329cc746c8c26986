"""Derived from a spec alone: the pods of the world, and the pod of each group rank."""

import pytest

from tests.unit.operator.given import a_group
from understudy_operator.plan.facts.spec import JobSpec, World

DRIVER = a_group("driver", replicas=1, parallelism=1)
LEADER = a_group("leader", replicas=1, parallelism=1)
WORKERS = a_group("workers", replicas=2, parallelism=3)
WORLD = World(groups=(LEADER, WORKERS))


@pytest.mark.parametrize(
    ("rank", "group", "job_index", "pod_index"),
    [(0, "leader", 0, 0), (1, "workers", 0, 0), (3, "workers", 0, 2), (4, "workers", 1, 0), (6, "workers", 1, 2)],
)
def test_group_ranks_count_through_the_groups_their_jobs_and_the_pods_of_each(
    rank: int, group: str, job_index: int, pod_index: int
):
    place = WORLD.position(rank)
    assert (place.group.name, place.job_index, place.pod_index) == (group, job_index, pod_index)


def test_exactly_the_pods_of_all_groups_are_actives():
    assert WORLD.actives == 7
    with pytest.raises(IndexError, match="group rank 7 of 7"):
        WORLD.position(7)


@pytest.mark.parametrize(("named", "template"), [("", "leader"), ("workers", "workers")])
def test_spares_have_the_template_that_is_named_or_the_first_of_the_world(named: str, template: str):
    assert World(groups=(LEADER, WORKERS), spare_template=named).spare_group.name == template


def test_replicated_jobs_outside_of_the_world_become_jobs_and_without_a_world_all_do():
    groups = (DRIVER, LEADER, WORKERS)
    assert JobSpec(groups, WORLD).children == (DRIVER,)
    assert JobSpec(groups).children == groups
