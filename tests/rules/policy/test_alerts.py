from mendgraph.nodes.execute_tools.policy.alerts import (
    Alert,
    AlertKind,
    Vitals,
    observe_cost,
    observe_reply,
    observe_tool,
)
from tests.row_tables import rows


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


@rows(
    ("", []),
    ("x", []),
    ("xxxx", []),
    ("xxxxx", [4]),
    ("xxxx....x", []),  # the first has left the window
    ("....xxxxx", [8]),
    ("x.x.x.x.x.x.", []),
    ("xxxxxxxxxxxxxxxxxxxx", [4]),
    ("xxxxx...xxx", [4]),  # 5, 4, 4, 5 of 8: it fluctuates
    ("xxxxx......xxxxx", [4, 15]),  # down to 2 of 8 between
    ("xxxxx.....xxxxxx", [4]),
)
def test_alert_is_raised_once_per_crossing(outcomes: str, raised: list[int]) -> None:
    assert tool_alerts(outcomes) == raised


def test_invalid_replies_and_failed_tools_are_counted_separately() -> None:
    vitals, alerts = Vitals(tools=(False, False, False, False)), list[Alert | None]()
    for _ in range(5):
        vitals, alert = observe_reply(vitals, valid=False)
        alerts.append(alert)
    message = "5 of the last 5 replies of the model were invalid: another model or protocol may do better."
    assert alerts == [None] * 4 + [Alert(AlertKind.INVALID_REPLIES, message, value=0.625, threshold=0.5)]
    assert vitals == Vitals(tools=(False,) * 4, replies=(False,) * 5, replies_alerted=True)
    tool_alert = observe_tool(vitals, ok=False)[1]
    assert tool_alert is not None
    assert tool_alert.message == "5 of the last 5 tool calls failed: look at their errors."


def test_expensive_call_raises_an_alert() -> None:
    vitals, alerts = costs_of(100, 120, 80, 100, 301)
    compared = "A model call cost 301 tokens, more than 3 times the median of the last 4 (100 tokens)"
    expected = Alert(AlertKind.COST, f"{compared}: check what was sent.", value=301.0, threshold=300.0)
    assert alerts == [None] * 4 + [expected]
    assert vitals == Vitals(costs=(100.0, 120.0, 80.0, 100.0, 301.0), cost_unit="tokens", cost_alerted=True)


@rows(
    ((1, 1, 1, 100), []),  # too few to compare with
    ((1, 1, 1, 1, 3), []),  # not more than three times
    ((1, 1, 1, 1, 4, 4, 4), [4]),  # once for each crossing
    ((1, 1, 1, 1, 4, 1, 4), [4, 6]),
    ((1, 1, 1, 1, 4, 4, 4, 4, 4, 4, 13), [4, 10]),  # the expensive ones became the usual ones
    ((0, 0, 0, 0, 5), []),
)
def test_call_is_expensive_above_three_times_the_median(amounts: tuple[float, ...], raised: list[int]) -> None:
    assert [at for at, alert in enumerate(costs_of(*amounts)[1]) if alert] == raised
