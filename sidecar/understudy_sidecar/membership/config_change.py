"""The voter configuration, the standby coordinators, and the leader snapshot that they get while the coordinator lives.

Rules: all members are in the voter configuration. When the members change, the coordinator proposes a new
configuration, at most every CONFIG_CHANGE_S and not before the last proposal is committed. It proposes the first
configuration while a round runs. While a proposal is pending, new members and new standby coordinators get the same
version again. A member that has missed a committed one gets it when it rejoins. There are at most
MAX_STANDBY_COORDINATORS: spares first (the least likely to fail with the training), each on another node than the ones
before it and the coordinator, as long as there are such nodes. Only standby coordinators get the list of voters and the
state that members do not resend: the counts and the ladder's history.
"""

from understudy_protocol import membership as m
from understudy_protocol.recovery import History
from understudy_sidecar.membership.coordinator_state import CoordinatorState
from understudy_sidecar.membership.roster import MemberRecord
from understudy_sidecar.membership.round_state import RoundPhase
from understudy_sidecar.membership.voter_config import Tally, VoterConfig

MAX_STANDBY_COORDINATORS = 5
#: Recoveries in a snapshot: a member resends them in its Join, which must stay small.
MAX_RECOVERIES_SENT = 5
#: While more members than this have not acknowledged their assignment, the coordinator sends no proposals.
MANY_UNACKED = 100


def propose_config_change(state: CoordinatorState, now: float) -> None:
    """Propose a change if one is due. The coordinator proposes nothing before a round was formed."""
    if not state.config_changes.take_due(now):
        return
    if state.round.phase is RoundPhase.REBUILDING or state.ending.close is not None:
        return
    if len(state.roster.unacked) > MANY_UNACKED:
        state.config_changes.postpone(now)
        return  # a round's assignments come first
    if state.voter_configs.pending is not None:
        _resend_pending(state, state.voter_configs.pending)
        return
    if not state.voter_configs.committed.exists and state.round.phase is not RoundPhase.RUNNING:
        return  # the first configuration has all actives of a round, so a partitioned minority cannot create one alone
    voters = state.roster.members
    if proposed := state.voter_configs.next_voters(voters):
        _propose(state, proposed)
        return
    if state.config_changes.snapshot_is_stale:
        send_leader_snapshot(state)
    _resend_committed(state)


def on_config_change_ack(state: CoordinatorState, member: MemberRecord, ack: m.ConfigChangeAck, now: float) -> None:
    member.config_version = max(member.config_version, ack.config_version)
    if state.voter_configs.acknowledge(member.uid, ack.config_version):
        state.notify_observers()
        state.roster.set_voter_config(state.voter_configs.committed)
        state.log(
            f"voter configuration {ack.config_version} is in effect: {len(state.voter_configs.committed.voters)} voters"
        )
        send_leader_snapshot(state)
        state.on_members_changed(now)  # members may have joined or left meanwhile


def choose_standby_coordinators(state: CoordinatorState) -> tuple[m.StandbyCoordinator, ...]:
    """The standby coordinators, in the order in which members call them."""
    able = [
        x
        for x in state.roster.members.values()
        if x.uid in state.roster.connected
        and x.uid != state.pod_uid
        and x.uid not in state.roster.leaving
        and not state.hardware_finding(x.node)
    ]
    able.sort(key=lambda x: (x.group_rank is not None, x.joined_at if x.group_rank is None else x.group_rank, x.uid))
    own = state.roster.members.get(state.pod_uid)
    nodes = {own.node} if own is not None else set()
    on_other_nodes: list[MemberRecord] = []
    for member in able:
        if member.node not in nodes and len(on_other_nodes) < MAX_STANDBY_COORDINATORS:
            nodes.add(member.node)
            on_other_nodes.append(member)
    chosen = {x.uid for x in on_other_nodes}
    rest = [x for x in able[: 2 * MAX_STANDBY_COORDINATORS] if x.uid not in chosen]
    return tuple(m.StandbyCoordinator(x.uid, x.join.ip) for x in (*on_other_nodes, *rest)[:MAX_STANDBY_COORDINATORS])


def has_electable_standby(state: CoordinatorState) -> bool:
    """Whether the members can elect a successor that has this coordinator's leader snapshot.

    The other members elect it. One of two voters is no majority: the operator appoints this voter (elections.py).
    """
    has_standby = state.voter_configs.committed.exists and any(
        standby.pod_uid in state.roster.connected for standby in state.config_changes.standbys
    )
    others = state.roster.connected - {state.pod_uid}
    return has_standby and (
        len(state.voter_configs.newest.voters) == 2 or Tally(state.voter_configs.newest, others).has_majority()
    )


def report_round(state: CoordinatorState, now: float) -> None:
    """Send the pods of a new round to the standby coordinators: this coordinator may be lost at any moment.

    In a large job the assignments come first, because the message has an entry for each rank.
    """
    if len(state.roster.unacked) > MANY_UNACKED:
        state.config_changes.send_snapshot_later(now)
    else:
        send_leader_snapshot(state)


def send_leader_snapshot(state: CoordinatorState) -> None:
    state.config_changes.on_snapshot()
    if not state.voter_configs.newest.exists:
        return
    leader_snapshot = take_leader_snapshot(state)
    uids = [standby.pod_uid for standby in state.config_changes.standbys] + [
        state.pod_uid
    ]  # itself: its sidecar may crash alone
    members = (state.roster.members.get(uid) for uid in uids)
    state.broadcast([x.link for x in members if x is not None and x.link is not None], leader_snapshot)


def take_leader_snapshot(state: CoordinatorState) -> m.LeaderSnapshot:
    voter_config = state.voter_configs.newest
    number = state.config_changes.next_snapshot()
    state.fault_history.on_sent(state.term)
    counted_faults = state.fault_history.newest(state.now)
    own = state.roster.members.get(state.pod_uid)
    open_ = state.recovery_log.open_in_brief(MAX_RECOVERIES_SENT)
    return m.LeaderSnapshot(
        voter_config.version,
        tuple(sorted(voter_config.voters)),
        tuple(sorted(voter_config.old_voters)),
        state.pod_uid,
        dict(state.recovery_log.counts),
        History(
            state.term,
            number,
            counted_faults,
            dict(state.fault_history.evicted),
            open_,
            state.backoff.failures,
            state.fault_history.drilled,
            state.recovery_log.ended_in_brief(MAX_RECOVERIES_SENT - len(open_), state.now),
        ),
        state.round.token,
        tuple(state.roster.last_holders[rank] for rank in sorted(state.roster.last_holders)),
        state.round.stepped,
        tuple(sorted(state.roster.suspects)),
        "" if own is None else own.name,
        "" if own is None else own.node,
        state.restores.decided,
        state.restores.restored,
    )


def _propose(state: CoordinatorState, voters: frozenset[str]) -> None:
    voter_config = state.voter_configs.propose(voters)
    state.roster.set_voter_config(voter_config)
    _update_standby_coordinators(state)
    state.broadcast(state.roster.links(), m.ConfigChange(voter_config.version, state.config_changes.standbys))


def _resend_pending(state: CoordinatorState, voter_config: VoterConfig) -> None:
    """Resend the pending proposal: to all if the standby coordinators have changed, else to those without an ack."""
    before = state.config_changes.standbys
    _update_standby_coordinators(state)
    members = state.roster.members.values()
    receivers = [
        x for x in members if before != state.config_changes.standbys or not state.voter_configs.has_acknowledged(x.uid)
    ]
    links = [x.link for x in receivers if x.link is not None]
    state.broadcast(links, m.ConfigChange(voter_config.version, state.config_changes.standbys))


def _resend_committed(state: CoordinatorState) -> None:
    """Resend the committed configuration to members that have missed it: they were disconnected, and know only earlier
    standby coordinators.
    """
    version = state.voter_configs.committed.version
    outdated = [x.link for x in state.roster.members.values() if x.link is not None and x.config_version < version]
    state.broadcast(outdated, m.ConfigChange(version, state.config_changes.standbys))


def _update_standby_coordinators(state: CoordinatorState) -> None:
    """Send the snapshot before the ConfigChange, so that each standby coordinator that it names can lead."""
    state.config_changes.set_standbys(choose_standby_coordinators(state))
    state.notify_observers()
    send_leader_snapshot(state)
