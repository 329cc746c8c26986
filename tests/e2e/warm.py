"""The example's training without spares of its own, and the pool that it names, whose spares have its pods' spec."""

import copy
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from tests.e2e import acts
from tests.e2e.plain import PlainJob
from tests.e2e.pools import SharedPool
from tests.e2e.training import Raw, Training

ANNOTATION_WARM_POOL_UID = "understudy.dev/warm-pool-uid"
ANNOTATION_ADOPTED_AT = "understudy.dev/adopted-at"
TRIES = 10


@dataclass
class PooledTraining(Training):
    """pool: "" for none."""

    pool: str = "shared"

    def trainer_template(self) -> Raw:
        """The names of the job's pods."""
        (job,) = [item for item in self._example() if item["kind"] == "TrainingJob"]
        template: Raw = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]
        return copy.deepcopy(template)

    def launcher(self) -> Raw:
        (job,) = [item for item in self._example() if item["kind"] == "TrainingJob"]
        launcher: Raw = job["spec"]["launcher"]
        return launcher

    def _localize(self, job: Raw) -> None:
        super()._localize(job)
        job["spec"]["spares"] = {"replicas": 0} | ({"pool": self.pool} if self.pool else {})
        job["spec"].pop("snapshots", None)  # a pool's spare has no memory for them


@dataclass
class WarmPool(SharedPool):
    """training: the job whose pod spec its spares have. change: a difference in their template."""

    training: PooledTraining | PlainJob | None = None
    change: Callable[[Raw], Any] = lambda template: None

    def manifest(self, note: str = "1") -> Raw:
        assert self.training is not None
        del note
        whole = super().manifest()
        template = self.training.trainer_template()
        self.change(template)
        whole["spec"] |= {"template": template, "launcher": self.training.launcher()}
        return whole

    def spares(self) -> list[Raw]:
        return [pod for pod in self.pods() if "deletionTimestamp" not in pod["metadata"]]


class NoVictim(AssertionError):
    """Each active pod shares its node with another one, with the coordinator or with the operator's leader."""


def power_off_away_from(training: PooledTraining, pool: SharedPool | None) -> acts.Act:
    """Power off the node of an active pod that is alone there, without a spare of the pool too. Raises NoVictim."""
    acts.settle(training)
    for _ in range(TRIES):
        kept = {pod["spec"].get("nodeName") for pod in pool.pods()} if pool is not None else set()
        victims = possible_victims(training)
        victim = next((one for one in victims if one.node not in kept), None)
        if victim is not None:
            off = partial(training.cluster.power_off, victim.node)
            either = ("SpareSwap", "PodRecreate")  # the pool's spare may be adopted or not
            return acts.measure(training, "power off a node", victim, off, kind="Node", strategies=either)
        if not victims or pool is None:
            break
        names = [pod["metadata"]["name"] for pod in pool.pods()]
        training.cluster.kubectl("-n", training.namespace, "delete", "pod", *names, "--grace-period=0", "--force")
        pool.wait_until_full(120)
    raise NoVictim(f"no active is on a node of its own:\n{training.pods_text()}")


def possible_victims(training: PooledTraining) -> list[acts.Victim]:
    found = []
    for rank in (1, 2, 0):
        with suppress(AssertionError):
            found.append(acts.choose_victim(training, (rank,)))
    return found
