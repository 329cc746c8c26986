"""How many spares are enough, the source of the probability, and the stability of the number."""

from dataclasses import replace

import pytest

from tests.unit.operator.given import NOW
from tests.unit.operator.given_pool import a_pool, observed_pool
from understudy_operator.plan.facts.pool_facts import AutoSize, Client, ObservedPool
from understudy_operator.plan.facts.status import AutoSizeStatus, PoolStatus
from understudy_operator.plan.pool import sizing
from understudy_operator.plan.pool.sizing import desired, spares_for, update_history
from understudy_operator.plan.times.rfc3339 import micro_time

DAY_S = 86400.0
HALF_LIFE_S = 30 * DAY_S
SHRINK_AFTER_S = DAY_S


def nodes(count: int) -> frozenset[str]:
    return frozenset(f"n{number}" for number in range(count))


def sized(observed: ObservedPool, now: float) -> tuple[int, ObservedPool]:
    """The number of spares after a reconcile, and the observation of the next one."""
    wanted, auto = desired(observed, now)
    return wanted, replace(observed, pool=replace(observed.pool, status=PoolStatus(desired=wanted, auto_size=auto)))


@pytest.mark.parametrize(("count", "spares"), [(128, 2), (256, 2), (512, 3), (1024, 4)])
def test_on_99_of_100_days_no_more_nodes_fail_than_the_pool_has_spares(count: int, spares: int):
    assert spares_for(count, 1.2e-3, most=16) == spares


def test_a_pool_for_no_nodes_has_no_spare_and_one_for_very_many_has_the_maximum():
    assert spares_for(0, 1.2e-3, most=16) == 0
    assert spares_for(1_000_000, 1.2e-3, most=16) == 16


def test_replicas_are_those_of_the_spec_without_auto_sizing():
    assert desired(observed_pool(a_pool(replicas=3)), NOW) == (3, None)


def test_the_nodes_are_those_of_the_pods_of_all_jobs_that_name_the_pool_each_counted_once():
    clients = (Client(nodes(500)), Client(nodes(512)))
    wanted, auto = desired(observed_pool(a_pool(auto_size=AutoSize()), clients=clients), NOW)
    assert (wanted, auto and auto.nodes, auto and auto.source) == (3, 512, "Default")


def test_the_probability_in_the_spec_takes_precedence():
    auto = AutoSize(nodes=128, failures_per_node_day=0.05)
    wanted, status = desired(observed_pool(a_pool(auto_size=auto), clients=(Client(nodes(2)),)), NOW)
    assert (wanted, status and status.nodes, status and status.source) == (13, 128, "Spec")


def test_a_probability_near_one_does_not_count_as_one():
    auto = AutoSize(nodes=8, failures_per_node_day=float("0.999999999999999999"))
    assert desired(observed_pool(a_pool(auto_size=auto)), NOW)[0] == 8


def test_the_number_stays_within_the_specs_bounds():
    for auto, wanted in ((AutoSize(nodes=1024, most=3), 3), (AutoSize(nodes=1, least=2), 2)):
        assert desired(observed_pool(a_pool(auto_size=auto)), NOW)[0] == wanted


def test_history_counts_once_there_are_a_thousand_days_of_nodes():
    # given 400 nodes, one of which fails every six hours: many more failures than the default assumes
    observed = observed_pool(a_pool(auto_size=AutoSize(nodes=400)))
    result = []
    for hour in range(0, 96, 6):
        now = NOW + hour * 3600
        failures = tuple((f"n{past}", NOW + past * 3600) for past in range(0, hour, 6))
        wanted, observed = sized(replace(observed, clients=(Client(nodes(400), failures),)), now)
        assert observed.pool.status.auto_size is not None
        result.append((observed.pool.status.auto_size.source, wanted))

    # then the default applies for two and a half days, and the number grows after that
    assert result[:10] == [("Default", 3)] * 10
    assert result[-1][0] == "History"
    assert result[-1][1] > 3


def test_a_failure_is_counted_once():
    before = AutoSizeStatus(node_days="0", failures="0", counted_until=micro_time(NOW))
    observed = observed_pool(clients=(Client(nodes(10), (("n1", NOW + 30), ("n1", NOW + 5000))),))
    first = update_history(before, observed, NOW + 3600)
    assert (first.failures, round(first.node_days, 2)) == (1.0, round(10 * (3600 - 60) / DAY_S, 2))
    values = AutoSizeStatus(
        node_days=str(first.node_days), failures=str(first.failures), counted_until=micro_time(first.until)
    )
    assert update_history(values, observed, NOW + 3700) == pytest.approx(first)
    assert round(update_history(values, observed, NOW + 7200).failures, 1) == 2.0


def test_old_history_loses_weight_and_downtime_of_the_operator_counts_as_at_most_a_day():
    before = AutoSizeStatus(node_days="1000", failures="8", counted_until=micro_time(NOW))
    history_after = update_history(before, observed_pool(clients=(Client(nodes(10)),)), NOW + 20 * DAY_S)
    weight = 0.5 ** (DAY_S / HALF_LIFE_S)
    assert (history_after.node_days, history_after.failures) == pytest.approx((1000 * weight + 10, 8 * weight))


def test_failures_during_downtime_of_the_operator_count_for_the_same_day():
    # given an operator that was down for ten days, in each of which a node has failed
    before = AutoSizeStatus(node_days="0", failures="0", counted_until=micro_time(NOW))
    failures = tuple((f"n{day}", NOW + (day + 0.5) * DAY_S) for day in range(10))
    history_after = update_history(before, observed_pool(clients=(Client(nodes(10), failures),)), NOW + 10 * DAY_S)

    # then it counts one day of ten nodes, and the failure of that day
    assert (history_after.node_days, history_after.failures) == (10.0, 1.0)


def test_a_clock_that_was_set_back_delays_neither_the_history_nor_a_smaller_size():
    # given a pool with more spares than it needs, whose status was written when the clock was a year ahead
    a_year_ahead = micro_time(NOW + 365 * DAY_S)
    auto = AutoSizeStatus(node_days="0", failures="0", counted_until=a_year_ahead, surplus_since=a_year_ahead)
    pool = replace(a_pool(auto_size=AutoSize()), status=PoolStatus(desired=4, auto_size=auto))
    observed = observed_pool(pool, clients=(Client(nodes(10), (("n1", NOW + 1800),)),))

    # when it is reconciled now, an hour later and a day later
    sizes, failures = [], []
    for now in (NOW, NOW + 3600, NOW + DAY_S):
        wanted, observed = sized(observed, now)
        assert observed.pool.status.auto_size is not None
        sizes.append(wanted)
        failures.append(float(observed.pool.status.auto_size.failures or "-1"))

    # then the failure counts within the hour, and the size shrinks after a day
    assert sizes == [4, 4, 1]
    assert failures == pytest.approx([0.0, 1.0, 1.0], abs=0.05)


def test_a_failure_that_several_jobs_report_counts_once():
    before = AutoSizeStatus(node_days="0", failures="0", counted_until=micro_time(NOW))
    clients = [Client(nodes(2), (("n0", NOW + second), ("", NOW + second))) for second in (1, 2)]
    history_after = update_history(before, observed_pool(clients=tuple(clients)), NOW + 3600)
    assert history_after.failures == 3.0, "n0, and two failures without a node"


def test_a_pool_grows_at_once_and_shrinks_only_after_a_day():
    # given a pool that is sized for 1,024 nodes
    pool = a_pool(auto_size=AutoSize(nodes=1024))
    wanted, observed = sized(observed_pool(pool), NOW)
    assert wanted == 4

    # when its size is for 128 nodes
    def for_nodes(observed: ObservedPool, count: int) -> ObservedPool:
        return replace(observed, pool=replace(observed.pool, auto_size=AutoSize(nodes=count)))

    wanted, observed = sized(for_nodes(observed, 128), NOW + 60)
    assert wanted == 4
    wanted, observed = sized(observed, NOW + 60 + SHRINK_AFTER_S / 2)
    assert wanted == 4

    # then a moment in which it needs them again restarts the wait
    wanted, observed = sized(for_nodes(observed, 1024), NOW + SHRINK_AFTER_S / 2 + 120)
    wanted, observed = sized(for_nodes(observed, 128), NOW + SHRINK_AFTER_S / 2 + 180)
    wanted, observed = sized(observed, NOW + SHRINK_AFTER_S + 180)
    assert wanted == 4
    wanted, observed = sized(observed, NOW + 2 * SHRINK_AFTER_S)
    assert wanted == 2
    assert observed.pool.status.auto_size is not None
    assert observed.pool.status.auto_size.surplus_since is None
    assert sizing.desired(for_nodes(observed, 1024), NOW + 3 * SHRINK_AFTER_S)[0] == 4
