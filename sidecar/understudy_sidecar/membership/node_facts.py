"""The findings about nodes and their topology domains, as the operator reports them. Decides nothing.

Rules: a finding may expire. A new coordinator uses the verdicts in its members' Joins until the operator has sent the
findings to it.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from understudy_protocol.enums import Verdict
from understudy_protocol.membership import Join, NodeVerdict
from understudy_protocol.observer import NodeFact
from understudy_sidecar.membership.roster import Roster

#: Characters of a node health finding that a reason repeats: it may be any text.
MAX_FINDING_CHARS = 200


@dataclass
class NodeFacts:
    are_known: bool = False  # the operator has sent them to this coordinator
    _facts: dict[str, NodeFact] = field(default_factory=dict)
    _at: float = 0.0  # when the operator sent them

    def update(self, facts: Iterable[NodeFact], at: float, roster: Roster) -> dict[NodeVerdict, list[int]]:
        """Take the operator's facts; return the links of the members by the verdict that they must get."""
        before, self._facts = self._facts, {fact.node: fact for fact in facts}
        is_first_report, self.are_known, self._at = not self.are_known, True, at
        links: dict[NodeVerdict, list[int]] = {}  # one message for all healthy nodes
        for member in roster.members.values():
            is_unchanged = before.get(member.node) == self._facts.get(member.node) and not is_first_report
            if member.link is not None and not is_unchanged:
                links.setdefault(self.verdict(member.node), []).append(member.link)
        for member in roster.active_members():
            roster.set_domain(member, self.domain(member.node))
        return links

    def restore(self, join: Join) -> None:
        """Use the verdict in a member's Join until the operator has sent the facts to this coordinator."""
        verdict = join.verdict
        if self.are_known or verdict is None:
            return
        hardware_finding, leaving_reason = (
            (verdict.reason, "") if verdict.verdict is Verdict.FAULTY else ("", verdict.reason)
        )
        if hardware_finding or (leaving_reason and verdict.fault_class is not None):
            self._facts[join.node] = NodeFact(
                join.node,
                join.domain,
                hardware_finding,
                verdict.until,
                verdict.fault_class,
                leaving_reason,
                verdict.grace_s,
            )

    def __bool__(self) -> bool:
        return bool(self._facts)

    def domain(self, node: str) -> str:
        fact = self._facts.get(node)
        return "" if fact is None else fact.domain

    def verdict(self, node: str) -> NodeVerdict:
        fact = self._facts.get(node)
        if fact is None or not (fact.hardware_finding or fact.leaving_reason):
            return NodeVerdict(Verdict.UNKNOWN, at=self._at)
        result = Verdict.FAULTY if fact.hardware_finding else Verdict.UNKNOWN
        finding = (fact.hardware_finding or fact.leaving_reason, fact.until, fact.fault_class, fact.grace_s)
        return NodeVerdict(result, *finding, self._at)

    def current(self, node: str, now: float) -> NodeFact | None:
        """The node's domain and findings; None if unknown or expired."""
        fact = self._facts.get(node)
        return None if fact is None or (fact.until is not None and now >= fact.until) else fact

    def hardware_finding(self, node: str, now: float) -> str:
        """Why no member on this node may get ranks; "" if its hardware has no finding."""
        fact = self.current(node, now)
        return "" if fact is None else fact.hardware_finding

    def finding(self, node: str, now: float) -> str:
        """The node health finding, about hardware or not; "" if there is none."""
        fact = self.current(node, now)
        return "" if fact is None else fact.hardware_finding or fact.leaving_reason

    def count_findings(self, now: float) -> int:
        return sum(bool(self.finding(node, now)) for node in self._facts)

    def expiries(self) -> list[float]:
        """When findings expire: members on these nodes may get ranks then."""
        return [fact.until for fact in self._facts.values() if fact.until is not None]
