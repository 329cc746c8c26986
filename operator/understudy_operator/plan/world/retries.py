"""Writes that the API server has rejected, and when the operator retries them.

Rules: the operator retries a rejected write after 0.25, 0.5, 1 … s, at most TRY_AGAIN_S; reconciles in between do not
shorten that. In a namespace that is being deleted it waits ENDING_S, because that deletion cannot be canceled. For many
rejected writes the rate of retries is limited. The rest of the plan is not delayed. Status keeps the first message of a
rejection while later ones are similar, until REWORD_AFTER_S is over: messages with the id of a request, a time or a
count would otherwise change status each time. A changed spec is tried at once (controllers/job_worker.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from understudy_operator.plan.facts.refusals import Refusal, RefusalKind
from understudy_operator.plan.intents import DryRun, Intent, Plan, PoolPlan, Remove, intent_key
from understudy_operator.plan.times.reconcile_clock import is_due
from understudy_protocol.pauses import growing_pause_s

FIRST_S = 0.25
#: The longest pause before a retry: a quota may have room again, or a webhook be back.
TRY_AGAIN_S = 10.0
#: The pause in a namespace that is being deleted.
ENDING_S = 60.0
#: After its pause a rejection is remembered for so long, even if no plan wants the write.
FORGET_AFTER_S = 2 * TRY_AGAIN_S
#: For one job.
RETRIES_PER_S = 20.0
#: After so long the newest message is reported, even if it is similar to the reported one.
REWORD_AFTER_S = 60.0
#: Words of a message. Those with a digit differ between rejections for the same reason. The pattern does not search for
#: the digit: over a long word without one that would take quadratic time.
_WORD, _DIGIT = re.compile(r"[\w.:+-]+"), re.compile(r"\d")
T = TypeVar("T", bound=Intent)


@dataclass(frozen=True)
class RetryState:
    refusal: Refusal  # as reported
    worded_at: float
    in_a_row: int
    pause_s: float
    retry_at: float
    is_wanted: bool = True  # by the newest plan; else it is not reported, and only its pause counts


@dataclass(frozen=True)
class Retries:
    """By the rejected intent: intent_key()."""

    by_key: Mapping[str, RetryState] = field(default_factory=dict)

    @property
    def refusals(self) -> tuple[Refusal, ...]:
        """Each refusal once, in a stable order."""
        wanted = (entry.refusal for entry in self.by_key.values() if entry.is_wanted)
        return tuple(dict.fromkeys(replace(refusal, key="") for refusal in wanted))

    def paused(self, now: float) -> Mapping[str, float]:
        """The intents that are paused, with the times of their retries. A clock that was set back delays nothing."""
        return {key: entry.retry_at for key, entry in self.by_key.items() if entry.retry_at <= now + entry.pause_s}

    def after(self, tried: Iterable[Intent], refusals: Iterable[Refusal], now: float) -> "Retries":
        """The state after these intents were tried and these refusals received."""
        refusals = tuple(refusals)
        if not refusals and not self.by_key:
            return self
        found = {refusal.key: refusal for refusal in reversed(refusals)}
        least_s = len(found) / RETRIES_PER_S
        answered = {intent_key(intent) for intent in tried} - found.keys()
        kept = {key: entry for key, entry in self.by_key.items() if key not in answered}
        new = {key: _refused(kept.get(key), refusal, now, least_s) for key, refusal in reversed(found.items())}
        return Retries(kept | new)

    def keep_wanted(self, plan: Plan | PoolPlan, now: float) -> "Retries":
        """Rejections of writes that this plan does not want are not reported, but kept for a while for the next one."""
        if not self.by_key:
            return self
        keys = {intent_key(intent) for intent in plan.writes} | set(plan.paused_writes)
        entries = ((key, replace(entry, is_wanted=key in keys)) for key, entry in self.by_key.items())
        return Retries(
            {key: entry for key, entry in entries if entry.is_wanted or now < entry.retry_at + FORGET_AFTER_S}
        )


def is_same_refusal(one: str, other: str) -> bool:
    """Whether two messages are equal except for ids, names, times and numbers."""
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(text: str) -> str:
    return _WORD.sub(lambda word: "#" if _DIGIT.search(word[0]) else word[0], text)


def without_paused(plan: Plan, paused: Mapping[str, float], now: float) -> Plan:
    """The plan without paused writes, which it lists in paused_writes."""
    paused_keys = _paused_keys(plan.writes, paused, now)
    if not paused_keys:
        return plan
    return replace(
        plan,
        dry_runs=() if intent_key(DryRun()) in paused_keys else plan.dry_runs,
        objects=_without_paused_keys(plan.objects, paused_keys),
        jobs=_without_paused_keys(plan.jobs, paused_keys),
        claims=_without_paused_keys(plan.claims, paused_keys),
        pods=_without_paused_keys(plan.pods, paused_keys),
        remove="" if intent_key(Remove()) in paused_keys else plan.remove,
        paused_writes=paused_keys,
    )


def without_paused_of_pool(plan: PoolPlan, paused: Mapping[str, float], now: float) -> PoolPlan:
    """The same for the plan of a pool."""
    paused_keys = _paused_keys(plan.writes, paused, now)
    if not paused_keys:
        return plan
    return replace(
        plan,
        objects=_without_paused_keys(plan.objects, paused_keys),
        releases=_without_paused_keys(plan.releases, paused_keys),
        pods=_without_paused_keys(plan.pods, paused_keys),
        paused_writes=paused_keys,
    )


def is_retry_due(key: str, paused: Mapping[str, float], now: float) -> bool:
    return key not in paused or is_due(paused[key], now)


def _paused_keys(intents: Iterable[Intent], paused: Mapping[str, float], now: float) -> frozenset[str]:
    if not paused:
        return frozenset()
    return frozenset(key for key in map(intent_key, intents) if not is_retry_due(key, paused, now))


def _without_paused_keys(intents: tuple[T, ...], paused_keys: frozenset[str]) -> tuple[T, ...]:
    return tuple(intent for intent in intents if intent_key(intent) not in paused_keys)


def _refused(before: RetryState | None, refusal: Refusal, now: float, least_s: float) -> RetryState:
    in_a_row = 1 if before is None else before.in_a_row + 1
    ends = refusal.kind is RefusalKind.NAMESPACE
    pause_s = max(ENDING_S if ends else growing_pause_s(FIRST_S, TRY_AGAIN_S, in_a_row), least_s)
    if before is not None and _is_reported_already(before, refusal, now):
        return replace(before, in_a_row=in_a_row, pause_s=pause_s, retry_at=now + pause_s, is_wanted=True)
    return RetryState(refusal, now, in_a_row, pause_s, now + pause_s)


def _is_reported_already(before: RetryState, refusal: Refusal, now: float) -> bool:
    same = before.refusal.kind is refusal.kind and is_same_refusal(before.refusal.message, refusal.message)
    return same and now < before.worded_at + REWORD_AFTER_S
