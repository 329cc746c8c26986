"""A child Job whose template changes while it is suspended: its pods get the spec's fields, and keep other fields."""

import copy
import json
from typing import Any

from tests.unit.operator.controllers.test_job_worker import JOBS, PATH, World, at_work, without_launcher, world
from tests.unit.operator.fake_api import Raw
from tests.unit.operator.given import TEMPLATE
from understudy_operator.observe.store import Kind

__all__ = ["world"]  # a fixture

JOB = f"{JOBS}/llm-workers-0"
FIRST: dict[str, Any] = {
    "nodeSelector": {"pool": "a", "both": "x"},
    "tolerations": [{"key": "first"}, {"key": "both"}],
    "schedulingGates": [{"name": "first"}],
}
SECOND: dict[str, Any] = {"nodeSelector": {"zone": "b", "both": "y"}, "tolerations": [{"key": "both"}]}


def jobs_with(spec: Raw, labels: Raw, annotations: Raw) -> list[Raw]:
    template = copy.deepcopy(dict(TEMPLATE))
    template["spec"] |= spec
    template["metadata"] = {"labels": labels, "annotations": annotations}
    return [{"name": "workers", "template": {"spec": {"template": template}}}]


def change(world: World, **spec: Any) -> None:
    raw = world.api.objects[PATH]
    raw["spec"] |= spec
    raw["metadata"]["generation"] = raw["metadata"].get("generation", 1) + 1
    world.store.put(Kind.JOB, world.api.put(PATH, raw))
    world.enqueue()


def suspended(world: World) -> bool:
    return bool(world.api.objects[JOB]["spec"]["suspend"])


def write(world: World, path: list[str], value: Any) -> None:
    """As a webhook or a user does."""
    raw = copy.deepcopy(world.api.objects[JOB])
    target = raw["spec"]["template"]
    for name in path[:-1]:
        target = target.setdefault(name, {})
    target[path[-1]] = value
    world.store.put(Kind.CHILD, world.api.put(JOB, raw))


async def test_fields_that_are_removed_while_a_job_is_suspended_do_not_stay_on_its_pods(world: World):
    # given a Job that runs, to whose pods a third party has added a label and a toleration
    first = jobs_with(FIRST, {"team": "a", "gone": "x"}, {"note": "a", "gone": "x", "long": "x" * 2000})
    without_launcher(world, replicatedJobs=first)
    async with at_work(world):
        await world.until(lambda: JOB in world.api.objects)
        uid = world.api.objects[JOB]["metadata"]["uid"]
        write(world, ["metadata", "labels", "theirs"], "stays")
        write(world, ["spec", "tolerations"], [{"key": "first"}, {"key": "both"}, {"key": "theirs"}])

        # when it is suspended, changed and resumed
        change(world, suspend=True)
        await world.until(lambda: suspended(world))
        change(world, replicatedJobs=jobs_with(SECOND, {"team": "b"}, {"note": "b"}))
        change(world, suspend=False)
        await world.until(lambda: not suspended(world))

        # then its pods have the fields of the current spec, and the third party's additions
        template = world.api.objects[JOB]["spec"]["template"]
        assert template["spec"]["nodeSelector"] == {"zone": "b", "both": "y"}
        assert template["spec"]["tolerations"] == [{"key": "both"}, {"key": "theirs"}]
        assert template["spec"]["schedulingGates"] == []
        labels, annotations = template["metadata"]["labels"], template["metadata"]["annotations"]
        assert ("gone" in labels, labels["team"], labels["theirs"]) == (False, "b", "stays")
        assert ({"gone", "long"} & set(annotations), annotations["note"]) == (set(), "b")

        # when all of the spec's fields are removed in the next suspension
        change(world, suspend=True)
        await world.until(lambda: suspended(world))
        change(world, replicatedJobs=jobs_with({}, {}, {}))
        change(world, suspend=False)
        await world.until(lambda: not suspended(world))

        # then no field of the second spec is left, and it is the same Job
        template = world.api.objects[JOB]["spec"]["template"]
        assert (template["spec"]["nodeSelector"], template["spec"]["tolerations"]) == ({}, [{"key": "theirs"}])
        assert "team" not in template["metadata"]["labels"]
        assert world.api.objects[JOB]["metadata"]["uid"] == uid


async def test_a_corrupted_record_of_written_fields_removes_nothing(world: World):
    without_launcher(world, replicatedJobs=jobs_with(FIRST, {}, {}))
    async with at_work(world):
        await world.until(lambda: JOB in world.api.objects)
        for broken in ("{", "[]", json.dumps({"nodeSelector": 7, "tolerations": {"a": 1}, "labels": [["x"]]})):
            raw = copy.deepcopy(world.api.objects[JOB])
            raw["metadata"]["annotations"]["understudy.dev/written-fields"] = broken
            world.store.put(Kind.CHILD, world.api.put(JOB, raw))
            change(world, suspend=True)
            await world.until(lambda: suspended(world))
            change(world, suspend=False)
            await world.until(lambda: not suspended(world))
    assert world.api.objects[JOB]["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "a", "both": "x"}
