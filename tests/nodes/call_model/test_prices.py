from importlib import resources

import pytest

from mendgraph.nodes.call_model.ledger import FREE, Price, cost_of, find_price, most_cost, parse_prices
from mendgraph.nodes.records import ToolError, ToolErrorCode
from tests.nodes.rows import rows

LIST = """
dated = 2026-02-28
source = "the providers' own pages"

[openai]
"gpt-4o" = { input = 2.5, cached_input = 1.25, output = 10 }
"gpt-4o-2024-05-13" = { input = 5, output = 15.0 }

[anthropic]
"claude-x-1" = { input = 3, cached_input = 0.3, cache_write = 3.75, output = 15 }

[google]
"gemini-x" = { input = 1, output = 2 }

[google_vertexai]
"gemini-y" = { input = 8, output = 9 }

[groq]
"openai/gpt-oss-20b" = { input = 0.0, output = 0.3 }
"""
GPT_4O = Price(input=2.5, output=10.0, cached_input=1.25)
OLD_4O = Price(input=5.0, output=15.0)
OSS = Price(input=0.0, output=0.3)
CLAUDE = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
GEMINI, ON_VERTEX = Price(input=1.0, output=2.0), Price(input=8.0, output=9.0)


def parsed(text: str) -> dict[str, Price]:
    prices = parse_prices(text, "prices.toml")
    assert isinstance(prices, dict)
    return prices


@rows(
    ("gpt-4o", GPT_4O),
    ("openai/gpt-4o", GPT_4O),
    ("gpt-4o-2024-08-06", GPT_4O),
    ("gpt-4o-2024-05-13", OLD_4O),
    ("groq/openai/gpt-oss-20b", OSS),
    ("gpt-oss-20b", None),
    ("gpt-4o-2024-13-06", None),
    ("anthropic:claude-x-1", CLAUDE),
    ("groq:openai/gpt-oss-20b", OSS),
    ("azure_openai:gpt-4o-2024-05-13", OLD_4O),
    ("google_genai:gemini-x", GEMINI),
    ("google_vertexai:gemini-y", ON_VERTEX),
)
def test_price_is_found_and_never_guessed(name: str, price: Price | None) -> None:
    assert find_price(parsed(LIST), name) == price


@rows(
    ('[a]\n"x" = { input = 1', "it is no TOML: Unclosed inline table at the end of the file (line 2)"),
    ("colour = 5", "colour is wrong (Input should be a valid dictionary)"),
    ("[a]\nx = 5", "a.x is wrong (Input should be a valid dictionary or instance of Price)"),
    ("[a]\nx = { input = 1 }", "a.x.output is wrong (Field required)"),
    ("[a]\nx = { input = 1, output = 1, cached = 1 }", "a.x.cached is wrong (Extra inputs are not permitted)"),
    ("[a]\nx = { input = 1, output = inf }", "a.x.output is wrong (Input should be a finite number)"),
    ("x = " + "[" * 100_000, "it is no TOML: arrays or tables are nested too deep"),
    (
        '[a]\nx = { input = 1, output = 1 }\n[b]\n"a/x" = { input = 2, output = 1 }',
        "'a/x' in [b] has a price already, in another table",
    ),
)
def test_broken_list_says_what_is_wrong(text: str, problem: str) -> None:
    message = f"The price list prices.toml cannot be used: {problem}. Mend it, or move it away."
    assert parse_prices(text, "prices.toml") == ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def test_shipped_list_is_whole() -> None:
    text = resources.files("mendgraph.nodes.call_model").joinpath("prices.toml").read_text(encoding="utf-8")
    shipped = parsed(text)
    assert len(shipped) == 2 * 80
    assert find_price(shipped, "gpt-4o-2024-08-06") == GPT_4O
    assert find_price(shipped, "gpt-4o-2024-05-13") == OLD_4O
    sonnet = Price(input=3.0, output=15.0, cached_input=0.3, cache_write=3.75)
    assert find_price(shipped, "claude-sonnet-4-5-20250929") == sonnet
    assert find_price(shipped, "anthropic:claude-sonnet-4-5") == sonnet
    assert [name for name in shipped if "claude" in name and shipped[name].cache_write is None] == []
    assert [name for name, price in shipped.items() if (price.cached_input or 0.0) > price.input] == []


@rows(
    ((1_000_000, 0, 0), GPT_4O, 2.5),
    ((1_000_000, 100_000, 400_000), GPT_4O, 0.6 * 2.5 + 0.4 * 1.25 + 0.1 * 10),
    ((10**9, 10**9, 10**9), FREE, 0.0),
    ((1_000_000, 0, 400_000, 500_000), CLAUDE, 0.1 * 3 + 0.4 * 0.3 + 0.5 * 3.75),
)
def test_tokens_of_the_cache_have_their_own_price(tokens: tuple[int, ...], price: Price, usd: float) -> None:
    assert cost_of(price, *tokens) == pytest.approx(usd, rel=1e-9)


@rows((CLAUDE, 3.75 + 1.5), (GPT_4O, 2.5 + 1.0), (Price(input=1, output=0, cached_input=2), 2.0), (FREE, 0))
def test_most_is_the_dearest_kind_of_input(price: Price, usd: float) -> None:
    assert most_cost(price, 1_000_000, 100_000) == pytest.approx(usd)
