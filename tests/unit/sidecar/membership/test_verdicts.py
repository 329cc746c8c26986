"""Members receive the verdict of their node, and its withdrawal."""

from __future__ import annotations

from tests.unit.sidecar.membership.driven import DrivenCoordinator, running
from understudy_protocol import membership as m
from understudy_protocol.enums import Verdict
from understudy_protocol.observer import NodeFact, Nodes
from understudy_sidecar.membership.events import FromOperator

FAULTY = NodeFact("node-of-active-0", hardware_finding="Xid 79", until=2e9)
VERDICT = m.NodeVerdict(Verdict.FAULTY, "Xid 79", 2e9)
NOTHING = m.NodeVerdict(Verdict.UNKNOWN)


def reported(driven: DrivenCoordinator, *facts: NodeFact) -> dict[str, list[m.NodeVerdict]]:
    """The verdicts that each member receives, if it receives any."""
    driven.do(FromOperator(Nodes(facts)))
    received = {name: driven.take(name, m.NodeVerdict) for name in ("active-0", "active-1", "spare-0")}
    return {name: verdicts for name, verdicts in received.items() if verdicts}


def test_the_first_verdicts_go_to_all_members() -> None:
    """Their files may have verdicts of a previous coordinator."""
    driven = running(2)
    assert reported(driven, FAULTY) == {"active-0": [VERDICT], "active-1": [NOTHING], "spare-0": [NOTHING]}


def test_later_verdicts_go_only_to_the_members_on_their_node() -> None:
    driven = running(2)
    reported(driven)
    assert reported(driven, FAULTY) == {"active-0": [VERDICT]}
    assert reported(driven, FAULTY) == {}
    assert reported(driven) == {"active-0": [NOTHING]}


def test_a_member_that_joins_receives_the_verdict_with_its_welcome() -> None:
    driven = running(2)
    reported(driven, NodeFact("node-of-spare-9", hardware_finding="Xid 79", until=2e9))
    driven.join("spare-9")
    assert [welcome.verdict for welcome in driven.take("spare-9", m.Welcome)] == [VERDICT]


def test_a_coordinator_without_node_facts_leaves_files_as_they_are() -> None:
    driven = running(2)
    driven.join("spare-9")
    assert [welcome.verdict for welcome in driven.take("spare-9", m.Welcome)] == [None]
