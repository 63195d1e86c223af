from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.machine.models import MachineModels, TurnModel, book_thread
from mendgraph.nodes.call_model.budget import APIUsageStats
from mendgraph.nodes.call_model.endpoint import EMBEDDED_WINDOW, ModelChoice
from mendgraph.nodes.call_model.ledger import Entry, RunLimits, Spending
from mendgraph.nodes.call_model.model import GuardedModel
from mendgraph.nodes.call_model.prices import FREE, PRICES_VARIABLE, Price
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import Profile
from tests.doubles.scripted_model import ScriptedModel
from tests.doubles.scripted_server import ScriptedServer
from tests.row_tables import rows

CONTEXT = AgentContext()
OWN_PRICES = """
[mine]
"my-model" = { input = 3.0, output = 5.0, cached_input = 1.0 }
"""


@contextmanager
def machine_models(model: Any = None) -> Iterator[MachineModels]:
    bound = MachineModels(model, Redactor, None)
    try:
        yield bound
    finally:
        bound.close()


def guarded_model(bound: MachineModels, model: str, base_url: str) -> GuardedModel:
    connected = bound._connect(None, None, ModelChoice(model=model, base_url=base_url))
    assert isinstance(connected, GuardedModel)
    return connected


def test_runs_share_one_circuit_breaker_per_model() -> None:
    with ScriptedServer() as server, machine_models() as bound:
        first, second, other = (guarded_model(bound, name, server.base_url).breaker for name in ("m", "m", "other"))
        assert first is second
        assert other is not first


PAIR = {"usd_per_million_input": 1.0, "usd_per_million_output": 2.0}
PRICES: list[tuple[dict[str, Any], str, Price | None]] = [
    ({}, "local", FREE),
    ({}, "", FREE),
    ({"model": "m", "base_url": "http://127.0.0.1:1/v1"}, "", None),
    ({"model": "my-model"}, "my-model", Price(input=3.0, output=5.0, cached_input=1.0)),
    ({"model": "nobodys"}, "nobodys", None),
    (PAIR, "nobodys", Price(input=1.0, output=2.0)),
    (PAIR | {"usd_per_million_cached_input": 0.5}, "my-model", Price(input=1.0, output=2.0, cached_input=0.5)),
]


def test_price_comes_from_the_context_or_the_list_and_is_never_guessed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    (tmp_path / "own.toml").write_text(OWN_PRICES, "utf-8")
    monkeypatch.setenv(PRICES_VARIABLE, str(tmp_path / "own.toml"))
    for variable in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(variable, raising=False)
    for settings, name, price in PRICES:
        with subtests.test(settings=settings, name=name), machine_models() as bound:
            assert TurnModel(bound, AgentContext(**settings)).price(name) == price


UNKNOWN = "no price is known for the model 'nobodys'"
PROBLEMS: list[tuple[dict[str, Any], str | None]] = [
    ({"model": "nobodys"}, None),
    ({"model": "nobodys", "max_cost_usd": 1.0}, UNKNOWN),
    ({"model": "nobodys", "max_cost_usd_per_day": 1.0}, UNKNOWN),
    ({"model": "nobodys", "max_cost_usd_per_account": 1.0}, UNKNOWN),
    ({"model": "local", "max_cost_usd": 1.0}, None),
    ({"model": "local", "max_cost_usd": 1.0, "fallback_models": ("nobodys",)}, "the model 'nobodys'"),
    ({"model": "m", "max_cost_usd": 1.0, **PAIR}, None),
    ({"model": "m", "fallback_models": ("m",)}, "Fallback model 1 (m) is in the list twice: name each model once."),
]


@rows(*PROBLEMS)
def test_cost_limit_needs_a_price_for_every_model(settings: dict[str, Any], words: str | None) -> None:
    with machine_models() as bound:
        problem = TurnModel(bound, AgentContext(**settings)).problem()
        assert problem == "" if words is None else words in problem


# --- Lost calls of earlier turns


def lose(bound: MachineModels, context: AgentContext, calls: int) -> None:
    """Reserve this many calls and never settle them, as a killed process does."""
    for _ in range(calls):
        thread = TurnModel(bound, context).settings(Profile(), "r").budget.thread
        entry = Entry(thread=thread, model="m", purpose="reply", input_tokens=10, output_tokens=5, cost_usd=0.0)
        assert isinstance(bound.book.reserve(entry, RunLimits()), int)


@pytest.fixture
def own_book(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MENDGRAPH_DATA_DIR", str(tmp_path))


@pytest.mark.usefixtures("own_book")
def test_unmarked_thread_ignores_calls_of_other_threads_with_its_name() -> None:
    with machine_models(ScriptedModel([])) as bound:
        lose(bound, CONTEXT, 2)
        fresh = TurnModel(bound, CONTEXT).spent_before(None, "r", marked=False)
        assert fresh == Spending(booked=2)
        lose(bound, CONTEXT, 1)
        later = TurnModel(bound, CONTEXT).spent_before(fresh, "r", marked=False)
    assert (later.usage, later.booked) == (APIUsageStats(1, 10, 5, 1), 3)


@pytest.mark.usefixtures("own_book")
def test_marked_thread_is_charged_for_calls_that_earlier_turns_lost() -> None:
    with machine_models(ScriptedModel([])) as bound:
        lose(bound, CONTEXT, 1)
        bound.book.begin(book_thread(CONTEXT, "r"), first=True)
        lose(bound, CONTEXT, 3)
        assert TurnModel(bound, CONTEXT).spent_before(None, "r", marked=True) == Spending(booked=2)
        bound.book.begin(book_thread(CONTEXT, "r"), first=False)
        lose(bound, CONTEXT, 1)
        spent = TurnModel(bound, CONTEXT).spent_before(None, "r", marked=True)
    assert (spent.usage, spent.booked) == (APIUsageStats(3, 30, 15, 3), 6)


WINDOWS: list[tuple[dict[str, Any], bool, int | None]] = [
    ({"model": "local"}, True, EMBEDDED_WINDOW),
    ({"model": "gpt-4o", "base_url": "http://127.0.0.1:1/v1"}, False, 128_000),
    ({"model": "gpt-4o", "window_tokens": 9_000}, False, 9_000),
    ({"model": "nobodys", "base_url": "http://127.0.0.1:1/v1"}, False, None),
]


def test_window_comes_from_the_context_or_the_model_name() -> None:
    for settings, embedded, tokens in WINDOWS:
        with machine_models() as bound:
            window = TurnModel(bound, AgentContext(**settings)).window_tokens(Profile(embedded=embedded))
        assert window == tokens
