"""What an answer to a write means that was not done."""

from understudy_operator.apply.api import ApiError
from understudy_operator.plan.intents import Intent, intent_key
from understudy_operator.plan.refusals import Refusal, read_refusal


def refusals_of(error: ApiError, intent: Intent) -> list[Refusal]:
    """Why it was not. Nothing where the object is gone, or another one than was seen: the store tells of that.

    Raises the error where it means neither.
    """
    if error.is_uid_conflict:
        return []
    refusal = read_refusal(error.status, str(error), key=intent_key(intent))
    if refusal is None and error.status not in (404, 409):
        raise error
    return [] if refusal is None else [refusal]
