"""Turns an error answer to a write into rejections."""

from understudy_operator.plan.facts.refusals import Refusal, read_refusal
from understudy_operator.plan.intents import Intent, intent_key
from understudy_operator.runtime.api import ApiError


def refusals_of(error: ApiError, intent: Intent) -> list[Refusal]:
    """The rejection. Empty if the object is gone or was replaced: the store will show that.

    Raises all other errors.
    """
    if error.is_uid_conflict:
        return []
    refusal = read_refusal(error.status, str(error), key=intent_key(intent))
    if refusal is None and error.status not in (404, 409):
        raise error
    return [] if refusal is None else [refusal]
