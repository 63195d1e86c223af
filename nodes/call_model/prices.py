"""Prices of models, and what a call costs.

The list of prices is a TOML document: a table for each provider, a row for each model.
"""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from mendgraph.nodes.language.documents import DocumentProblem, read_toml
from mendgraph.nodes.records import Record, ToolError, invalid

PRICES_VARIABLE: Final = "MENDGRAPH_PRICES"
"""The variable with the path of a price list that replaces `prices.toml` in the user's config folder."""

MOST_USD: Final = 1_000_000_000  # the highest price, so that no sum of costs is infinite
_DATE: Final = re.compile(r"-20\d\d(-?)(0[1-9]|1[0-2])\1(0[1-9]|[12]\d|3[01])$")

_TABLES: Final = {
    "azure_openai": "openai",
    "google_genai": "google",
    "google_vertexai": "google",
}
"""LangChain's providers whose models are in another provider's table. Source: langchain 1, `init_chat_model`."""

_Usd = Annotated[float, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]


class Price(Record):
    """USD for a million tokens.

    `cached_input` is for tokens read from the provider's cache, `cache_write` for tokens written into it; None means
    the price of other input. Surcharges for requests above 128,000 or 200,000 tokens are not included.
    """

    input: _Usd
    output: _Usd
    cached_input: _Usd | None = None
    cache_write: _Usd | None = None


FREE: Final = Price(input=0.0, output=0.0)
"""The price of the embedded model."""


PriceList = Mapping[str, Price]
"""Prices by the model's name, and by provider and name (`openai/gpt-4o`)."""

_PRICE_TABLES: Final = TypeAdapter(dict[str, dict[str, Price]])


@lru_cache(maxsize=4)
def parse_prices(text: str, name: str) -> PriceList | ToolError:
    """Read a price list, or return an error with the wrong line or field; `name` is the list's name in errors.

    Each table is a provider, each row a model: `[openai]` and `"gpt-4o" = { input = 2.5, output = 10, cached_input =
    1.25, cache_write = 2.5 }`, in USD for a million tokens. `dated` and `source` may stand at the top.
    """
    tree = read_toml(text)
    if isinstance(tree, DocumentProblem):
        where = f" (line {tree.line})" if tree.line else ""
        return _wrong(name, f"it is not TOML: {tree.message}{where}")

    rows = {key: value for key, value in tree.items() if key not in ("dated", "source")}
    try:
        tables = _PRICE_TABLES.validate_python(rows, strict=True)
    except ValidationError as error:  # values are not repeated, as a number may be very long
        fault = error.errors(include_input=False, include_url=False)[0]
        return _wrong(name, f"{'.'.join(map(str, fault['loc']))} is wrong ({fault['msg']})")

    prices: dict[str, Price] = {}

    for provider, priced in tables.items():
        for model, price in priced.items():
            names = (model, f"{provider}/{model}")
            duplicate = next((key for key in names if key in prices), None)
            if duplicate:
                return _wrong(name, f"{duplicate!r} in [{provider}] has a second price in another table")

            prices.update(dict.fromkeys(names, price))

    return prices


def _wrong(name: str, problem: str) -> ToolError:
    return invalid(f"The price list {name} cannot be used: {problem}. Fix it, or move it away.")


def find_price(prices: PriceList, model: str) -> Price | None:
    """Return the price of the model with this name, or None; prices of similar names are not used.

    The name may be alone (`gpt-4o`) or after its provider (`openai/gpt-4o`, or LangChain's `openai:gpt-4o`). If it is
    not listed, a date at its end is removed (`gpt-4o-2024-08-06`), since endpoints answer with dated names.
    """
    provider, colon, name = model.partition(":")
    named = (f"{provider}/{name}", f"{_TABLES.get(provider, provider)}/{name}") if colon else ()
    tried = (candidate for full_name in (model, *named) for candidate in (full_name, _DATE.sub("", full_name)))

    return next((prices[candidate] for candidate in tried if candidate in prices), None)


def cost_of(
    price: Price, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
) -> float:
    """Return the cost in USD; of the input tokens, some were read from the provider's cache, some written into it."""
    if price.cached_input is None:
        cached_price = price.input
    else:
        cached_price = price.cached_input

    if price.cache_write is None:
        write_price = price.input
    else:
        write_price = price.cache_write

    paid_in_full = (input_tokens - cached_tokens - cache_write_tokens) * price.input
    cached = cached_tokens * cached_price
    written = cache_write_tokens * write_price

    return (paid_in_full + cached + written + output_tokens * price.output) / 1_000_000


def most_cost(price: Price, input_tokens: int, output_tokens: int) -> float:
    """Return the highest possible cost in USD, as the use of the cache is not known before the call."""
    dearest = max(price.input, price.cached_input or 0.0, price.cache_write or 0.0)
    return (input_tokens * dearest + output_tokens * price.output) / 1_000_000
