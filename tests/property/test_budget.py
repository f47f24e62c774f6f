"""Budgets: never over, free while ample, and a higher value never loses to a lower one."""

from hypothesis import given, settings
from hypothesis import strategies as st

from firstline_core.routing.account import Account, Cost
from firstline_core.routing.budget import SLOTS, Budget, Ledger, Meter
from firstline_core.units import DAY_S, HOUR_S

START_S = 20_500 * DAY_S

costs = st.just(0.0) | st.floats(0.001, 50)
amounts = st.floats(0.01, 1e6)
shares = st.floats(0, 1)
periods = st.sampled_from([HOUR_S, DAY_S])
# Seconds since the request before, value, cost, whether the contract demands it.
offers = st.lists(st.tuples(st.floats(0, 9000), shares, costs, st.booleans()), max_size=120)


@given(amounts, periods, offers)
def test_no_period_spends_more_than_its_budget(amount: float, period_s: float, stream: list[tuple[float, ...]]) -> None:
    account = Account({"bytes": Meter(Budget(amount, period_s), Ledger())})
    now_s, spent = START_S, dict[int, float]()
    for wait_s, value, cost, demanded in stream:
        now_s += wait_s
        if account.decide(value, Cost(cost), now_s, demanded=bool(demanded)) is None:
            assert account.take(Cost(cost), now_s)
            period = int(now_s // period_s)
            spent[period] = spent.get(period, 0.0) + cost
    assert all(sum_spent <= amount * (1 + 1e-9) for sum_spent in spent.values())


@given(offers, st.lists(st.tuples(shares, costs, st.booleans()), min_size=1))
def test_budget_holds_for_requests_without_a_price(
    stream: list[tuple[float, ...]], promises: list[tuple[float, float, bool]]
) -> None:
    account = Account({"joules/day": Meter(Budget(100.0, DAY_S), Ledger())})
    spent = 0.0
    for _, value, cost, demanded in stream:
        if account.decide(value, Cost(joules=cost), START_S, demanded=bool(demanded)) is None:
            spent += cost * account.take(Cost(joules=cost), START_S)
    for _, cost, _ in promises:
        spent += cost * account.take(Cost(joules=cost), START_S, audit=True)
    assert spent <= 100.0 * (1 + 1e-9)


# Seconds since the one before, what is set aside, the share of it that is spent, and how many calls begin meanwhile.
waits_s, sizes = st.sampled_from([0.0, 700.0, 1800.0]), st.sampled_from([20.0, 60.0, 100.0])
calls = st.lists(st.tuples(waits_s, sizes, st.sampled_from([0.0, 0.5, 1.0]), st.integers(1, 3)), max_size=30)


@given(calls)
def test_spending_in_flight_counts_in_its_period(stream: list[tuple[float, ...]]) -> None:
    account, now_s, spent = Account({"bytes": Meter(Budget(100.0, HOUR_S), Ledger())}), START_S, dict[int, float]()
    under_way: list[tuple[float, float, float, list[int]]] = []
    for number, (wait_s, reserved, share, others) in enumerate(stream):
        now_s += wait_s
        for call in [call for call in under_way if call[0] <= number]:
            under_way.remove(call)
            account.settle(Cost(call[1]), Cost(call[1] * call[2]), call[3], now_s)
        if account.take(Cost(reserved), now_s):
            under_way.append((number + others, reserved, share, account.periods))
            period = int(now_s // HOUR_S)
            spent[period] = spent.get(period, 0.0) + reserved * share
    assert all(sum_spent <= 100.0 * (1 + 1e-9) for sum_spent in spent.values())


@given(offers, shares, shares, costs, st.booleans())
def test_higher_values_are_preferred(
    stream: list[tuple[float, ...]], one: float, other: float, cost: float, demanded: bool
) -> None:
    def account_after(stream: list[tuple[float, ...]]) -> tuple[Account, float]:
        account, now_s = Account({"money": Meter(Budget(60.0, HOUR_S), Ledger())}), START_S
        for wait_s, value, price, is_demanded in stream:
            now_s += wait_s
            if account.decide(value, Cost(money=price), now_s, demanded=bool(is_demanded)) is None:
                account.take(Cost(money=price), now_s)
        return account, now_s

    lower, higher = sorted((one, other))
    account, now_s = account_after(stream)
    twin, _ = account_after(stream)
    paid_lower = account.decide(lower, Cost(money=cost), now_s, demanded=demanded) is None
    paid_higher = twin.decide(higher, Cost(money=cost), now_s, demanded=demanded) is None
    assert paid_higher >= paid_lower


@given(offers)
def test_required_escalations_have_the_lowest_price(stream: list[tuple[float, ...]]) -> None:
    meter, now_s = Meter(Budget(40.0, HOUR_S), Ledger()), START_S
    for wait_s, value, cost, demanded in stream:
        now_s += wait_s
        assert 0 <= meter.price(now_s, demanded=True) <= meter.price(now_s, demanded=False)
        taken = value >= meter.price(now_s, demanded=bool(demanded)) * cost and cost <= meter.left(now_s)
        meter.offered(value, cost, cost * taken, now_s, demanded=bool(demanded))
        if taken:
            meter.charge(cost, now_s, priced=True)


@settings(max_examples=50)
@given(offers)
def test_an_ample_budget_has_no_price(stream: list[tuple[float, ...]]) -> None:
    # So ample that every slot of the day may bring as much as all of this together.
    amount = 4 * SLOTS * sum(cost for _, _, cost, _ in stream) + 1.0
    meter, now_s = Meter(Budget(amount, DAY_S), Ledger()), START_S
    for wait_s, value, cost, demanded in stream:
        now_s = min(now_s + wait_s, START_S + DAY_S - 1)
        meter.offered(value, cost, cost, now_s, demanded=bool(demanded))
        meter.charge(cost, now_s, priced=True)
        assert meter.price(now_s, demanded=False) == 0.0


@given(offers)
def test_prices_survive_a_restart(stream: list[tuple[float, ...]]) -> None:
    ledger = Ledger()
    steady, restarted = Meter(Budget(50.0, DAY_S), Ledger()), Meter(Budget(50.0, DAY_S), ledger)
    now_s = START_S
    for wait_s, value, cost, demanded in stream:
        now_s += wait_s
        restarted = Meter(restarted.budget, ledger)
        assert restarted.left(now_s) == steady.left(now_s)
        for meter in (steady, restarted):
            meter.offered(value, cost, cost * (cost <= meter.left(now_s)), now_s, demanded=bool(demanded))
            meter.charge(min(cost, meter.left(now_s)), now_s, priced=True)
