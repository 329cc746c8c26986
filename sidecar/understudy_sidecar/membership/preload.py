"""The modules that the fork servers of spares import: those that the pod of rank 0 has learned from its workers.

Rules: the first report of a term counts. A spare, which neither has nor claims ranks, gets the modules once, when they
are known or when it joins. The content is a member's, so it is cut to about the size that a launcher sends.
"""

from itertools import accumulate

from understudy_protocol import membership as m
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord

MAX_MODULES, MAX_NAME_CHARS, MAX_CHARS = 500, 200, 20_000


def on_learned(state: CoordinatorState, modules: tuple[str, ...]) -> None:
    if state.learned_modules:
        return
    names = [name for name in modules[:MAX_MODULES] if name.isascii() and len(name) <= MAX_NAME_CHARS]
    length = accumulate(map(len, names))
    state.learned_modules = tuple(name for name, so_far in zip(names, length, strict=True) if so_far <= MAX_CHARS)
    for member in state.roster.members.values():
        on_joined(state, member)


def on_joined(state: CoordinatorState, member: MemberRecord) -> None:
    has_no_ranks = member.group_rank is None and member.join.group_rank is None
    if state.learned_modules and has_no_ranks:
        state.send(member, m.Preload(state.learned_modules))
