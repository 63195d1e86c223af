from statistics import median

import pytest
from hypothesis import given, strategies as st

from mendgraph.nodes.execute_tools.policy.alerts import (
    ALL_CLEAR,
    COST_FACTOR,
    THRESHOLD,
    WINDOW,
    Alert,
    AlertKind,
    Vitals,
    observe_cost,
    observe_reply,
    observe_tool,
)


def tool_alerts(outcomes: str) -> list[int]:
    """Which of the calls, `x` for one that failed, raised an alert."""
    vitals, raised = Vitals(), []
    for at, outcome in enumerate(outcomes):
        vitals, alert = observe_tool(vitals, outcome != "x")
        raised += [at] if alert else []
    return raised


def costs_of(*amounts: float, unit: str = "tokens", vitals: Vitals | None = None) -> tuple[Vitals, list[Alert | None]]:
    vitals, alerts = vitals or Vitals(), []
    for amount in amounts:
        vitals, alert = observe_cost(vitals, amount, unit)
        alerts.append(alert)
    return vitals, alerts


@pytest.mark.parametrize(
    ("outcomes", "raised"),
    [
        ("", []),
        ("x", []),
        ("xxxx", []),
        ("xxxxx", [4]),
        ("xxxx....x", []),  # the first has left the window
        ("....xxxxx", [8]),
        ("x.x.x.x.x.x.", []),
        ("xxxxxxxxxxxxxxxxxxxx", [4]),
        ("xxxxx...xxx", [4]),  # 5, 4, 4, 5 of 8: it wavers
        ("xxxxx......xxxxx", [4, 15]),  # down to 2 of 8 between
        ("xxxxx.....xxxxxx", [4]),  # down to 3 of 8 only
    ],
)
def test_an_alert_is_raised_once_for_each_crossing(outcomes: str, raised: list[int]) -> None:
    assert tool_alerts(outcomes) == raised


def test_an_alert_says_what_went_up() -> None:
    vitals = Vitals(tools=(True, True, True, False, False, False, False))
    new, alert = observe_tool(vitals, ok=False)
    assert alert == Alert(
        AlertKind.ERROR_RATE, "5 of the last 8 tool calls failed: look at their errors.", value=0.625, threshold=0.5
    )
    assert alert.as_map() == {
        "kind": "error_rate",
        "message": "5 of the last 8 tool calls failed: look at their errors.",
        "value": 0.625,
        "threshold": 0.5,
    }
    assert new == Vitals(tools=(True, True, True, False, False, False, False, False), tools_alerted=True)
    assert vitals.tools_alerted is False


def test_invalid_replies_are_counted_apart_from_failed_tools() -> None:
    vitals = Vitals(tools=(False, False, False, False))
    alerts = []
    for _ in range(5):
        vitals, alert = observe_reply(vitals, valid=False)
        alerts.append(alert)
    assert alerts == [None] * 4 + [
        Alert(
            AlertKind.INVALID_REPLIES,
            "5 of the last 5 replies of the model were invalid: another model or protocol may do better.",
            value=0.625,
            threshold=0.5,
        )
    ]
    assert vitals == Vitals(tools=(False,) * 4, replies=(False,) * 5, replies_alerted=True)
    assert observe_tool(vitals, ok=False)[1] is not None


def test_replies_are_told_again_only_after_an_all_clear() -> None:
    vitals, raised = Vitals(), []
    for at, outcome in enumerate("xxxxxx......xxxxxx"):
        vitals, alert = observe_reply(vitals, outcome != "x")
        raised += [at] if alert else []
    assert raised == [4, 16]


@given(st.lists(st.booleans(), max_size=60))
def test_an_alert_always_stands_for_a_rate_above_the_threshold_and_the_window_is_bounded(outcomes: list[bool]) -> None:
    vitals, up = Vitals(), False
    for at, ok in enumerate(outcomes):
        vitals, alert = observe_tool(vitals, ok)
        rate = outcomes[max(0, at + 1 - WINDOW) : at + 1].count(False) / WINDOW
        assert (alert is not None) is (rate > THRESHOLD and not up)
        up = rate > (ALL_CLEAR if up else THRESHOLD)
        assert vitals.tools == tuple(outcomes[max(0, at + 1 - WINDOW) : at + 1])
    assert Vitals.model_validate_json(vitals.model_dump_json()) == vitals


def test_a_dear_call_is_told() -> None:
    vitals, alerts = costs_of(100, 120, 80, 100, 301)
    assert alerts == [None] * 4 + [
        Alert(
            AlertKind.COST,
            "A model call cost 301 tokens, more than 3 times the median of the last 4 (100 tokens):"
            " look at what it was sent.",
            value=301.0,
            threshold=300.0,
        )
    ]
    assert vitals == Vitals(costs=(100.0, 120.0, 80.0, 100.0, 301.0), cost_unit="tokens", cost_alerted=True)


@pytest.mark.parametrize(
    ("amounts", "raised"),
    [
        ((1, 1, 1, 100), []),  # too few to compare with
        ((1, 1, 1, 1, 3), []),  # not more than three times
        ((1, 1, 1, 1, 4, 4, 4), [4]),  # once for each crossing
        ((1, 1, 1, 1, 4, 1, 4), [4, 6]),
        ((1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 13), [4, 10]),  # the dear ones became the usual ones
        ((0, 0, 0, 0, 5), []),  # a model that costs nothing
        ((1, 1, 1, 1, float("nan"), float("inf"), -5, 10**400), []),
    ],
)
def test_when_a_call_is_dear(amounts: tuple[float, ...], raised: list[int]) -> None:
    assert [at for at, alert in enumerate(costs_of(*amounts)[1]) if alert] == raised


@given(st.lists(st.floats(0, 1e6), max_size=40))
def test_costs_are_compared_with_the_median_of_those_before(amounts: list[float]) -> None:
    vitals, up = Vitals(), False
    for at, amount in enumerate(amounts):
        before = amounts[max(0, at - WINDOW) : at]
        dear = len(before) >= 4 and 0 < COST_FACTOR * median(before) < amount
        vitals, alert = observe_cost(vitals, amount, "tokens")
        assert (alert is not None) is (dear and not up)
        up = dear
    assert vitals.costs == tuple(amounts[-WINDOW:])
