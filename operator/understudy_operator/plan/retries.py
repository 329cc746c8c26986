"""What the API server has refused, and when it is tried again.

Rules: what was refused is tried again after 0.25, 0.5, 1 … s, at most TRY_AGAIN_S, and whatever wakes the job
meanwhile does not shorten that; many refused things are tried so many a second. All else of the plan goes on. A refusal
is told in the words that it had first for as long as it is alike, at least WORDS_S: words with a request's id, a time
or a count in them would otherwise be another status each time. A spec that was changed is tried at once (worker.py).
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeVar

from understudy_operator.plan.intents import Check, Intent, Plan, PoolPlan, Remove, intent_key
from understudy_operator.plan.moment import reached
from understudy_operator.plan.refusals import Refusal

FIRST_S = 0.25
#: What the API server has refused is tried again so often: a quota may have room again, a webhook be back.
TRY_AGAIN_S = 10.0
#: After the end of its pause it is known for so long what was refused, though nobody wants it.
KNOWN_S = 2 * TRY_AGAIN_S
#: Of one job.
RETRIES_PER_S = 20.0
#: After so long the newest words are told, though they are much like the former ones.
WORDS_S = 60.0
#: Words of a refusal. Those with a digit differ from one refusal to the next for the same reason. No search for a digit
#: within the pattern: over a long word without one it would take the square of the word's length.
_WORD, _DIGIT = re.compile(r"[\w.:+-]+"), re.compile(r"\d")
T = TypeVar("T", bound=Intent)


@dataclass(frozen=True)
class Refused:
    refusal: Refusal  # as it is told
    worded_at: float
    in_a_row: int
    pause_s: float
    again_at: float
    wanted: bool = True  # still; else it is not told, and only its pause counts


@dataclass(frozen=True)
class Retries:
    """By what was refused: intent_key()."""

    refused: Mapping[str, Refused] = field(default_factory=dict)

    @property
    def told(self) -> tuple[Refusal, ...]:
        """Each refusal once, in an order that stays."""
        wanted = (entry.refusal for entry in self.refused.values() if entry.wanted)
        return tuple(dict.fromkeys(replace(refusal, of="") for refusal in wanted))

    def paused(self, now: float) -> Mapping[str, float]:
        """What is not tried before which time. A clock that was set back holds up nothing."""
        return {key: entry.again_at for key, entry in self.refused.items() if entry.again_at <= now + entry.pause_s}

    def after(self, tried: Iterable[Intent], refusals: Iterable[Refusal], now: float) -> "Retries":
        """Once these were tried, of which those were refused."""
        refusals = tuple(refusals)
        if not refusals and not self.refused:
            return self
        found = {refusal.of: refusal for refusal in reversed(refusals)}
        least_s = len(found) / RETRIES_PER_S
        answered = {intent_key(intent) for intent in tried} - found.keys()
        kept = {key: entry for key, entry in self.refused.items() if key not in answered}
        new = {key: _refused(kept.get(key), refusal, now, least_s) for key, refusal in reversed(found.items())}
        return Retries(kept | new)

    def wanted(self, plan: Plan | PoolPlan, now: float) -> "Retries":
        """What this plan does not want is not told any more. It is known for a while: the next may want it again."""
        if not self.refused:
            return self
        keys = {intent_key(intent) for intent in plan.writes} | set(plan.held)
        entries = ((key, replace(entry, wanted=key in keys)) for key, entry in self.refused.items())
        return Retries({key: entry for key, entry in entries if entry.wanted or now < entry.again_at + KNOWN_S})


def alike(one: str, other: str) -> bool:
    """Whether two refusals say the same, but for ids, names, times and numbers."""
    return _without_numbers(one) == _without_numbers(other)


def _without_numbers(text: str) -> str:
    return _WORD.sub(lambda word: "#" if _DIGIT.search(word[0]) else word[0], text)


def without_paused(plan: Plan, paused: Mapping[str, float], now: float) -> Plan:
    """What is to be tried in this pass; the rest is named as held."""
    held = _held(plan.writes, paused, now)
    if not held:
        return plan
    return replace(
        plan,
        checks=() if intent_key(Check()) in held else plan.checks,
        objects=_due(plan.objects, held),
        jobs=_due(plan.jobs, held),
        claims=_due(plan.claims, held),
        pods=_due(plan.pods, held),
        remove="" if intent_key(Remove()) in held else plan.remove,
        held=held,
    )


def without_paused_of_pool(plan: PoolPlan, paused: Mapping[str, float], now: float) -> PoolPlan:
    """The same of a pool's."""
    held = _held(plan.writes, paused, now)
    if not held:
        return plan
    objects, releases = _due(plan.objects, held), _due(plan.releases, held)
    return replace(plan, objects=objects, releases=releases, pods=_due(plan.pods, held), held=held)


def is_due(key: str, paused: Mapping[str, float], now: float) -> bool:
    return key not in paused or reached(paused[key], now)


def _held(intents: Iterable[Intent], paused: Mapping[str, float], now: float) -> frozenset[str]:
    if not paused:
        return frozenset()
    return frozenset(key for key in map(intent_key, intents) if not is_due(key, paused, now))


def _due(intents: tuple[T, ...], held: frozenset[str]) -> tuple[T, ...]:
    return tuple(intent for intent in intents if intent_key(intent) not in held)


def _refused(before: Refused | None, refusal: Refusal, now: float, least_s: float) -> Refused:
    in_a_row = 1 if before is None else before.in_a_row + 1
    pause_s = max(min(FIRST_S * 2.0 ** min(in_a_row - 1, 10), TRY_AGAIN_S), least_s)
    if before is not None and _stays(before, refusal, now):
        return replace(before, in_a_row=in_a_row, pause_s=pause_s, again_at=now + pause_s, wanted=True)
    return Refused(refusal, now, in_a_row, pause_s, now + pause_s)


def _stays(before: Refused, refusal: Refusal, now: float) -> bool:
    same = before.refusal.why is refusal.why and alike(before.refusal.message, refusal.message)
    return same and now < before.worded_at + WORDS_S
