"""What models cost: price lists read from TOML text, and the price of a model by its name."""

import re
from typing import Annotated, Final

from pydantic import Field, TypeAdapter, ValidationError

from mendgraph.nodes.call_model.prompts.estimates import countable
from mendgraph.nodes.language.documents import DocumentProblem, read_toml
from mendgraph.nodes.records import Record, ToolError, ToolErrorCode

PRICES_VARIABLE: Final = "MENDGRAPH_PRICES"
"""Names a price list to be used instead of `prices.toml` in the user's config folder."""

MOST_USD: Final = 1_000_000_000
"""Of a price, far above every real one: so that no sum of costs is infinite."""

_MILLION: Final = 1_000_000
_DATE: Final = re.compile(r"-20\d\d(-?)(0[1-9]|1[0-2])\1(0[1-9]|[12]\d|3[01])$")

_TABLES: Final = {
    "azure_openai": "openai",
    "google_genai": "google",
    "google_vertexai": "google",
}
"""LangChain's names of providers whose models another table has, at the same list price.

Source: langchain 1, `init_chat_model`. Its other providers that the shipped list knows are called as their tables are.
"""

_Usd = Annotated[float, Field(ge=0, le=MOST_USD, allow_inf_nan=False)]


class Price(Record):
    """USD for a million tokens. `cached_input` or `cache_write` None: such tokens cost as much as other input.

    `cached_input` is for tokens that the provider had in its cache, `cache_write` for those that it writes into it.
    Some providers ask for more where a request has more than 128,000 or 200,000 tokens; that is not in here.
    """

    input: _Usd
    output: _Usd
    cached_input: _Usd | None = None
    cache_write: _Usd | None = None


FREE: Final = Price(input=0.0, output=0.0)
"""The price of the embedded model."""


class PriceList(Record):
    """Prices by the model's name, and by provider and name (`openai/gpt-4o`); `dated` and `source` say of what day."""

    prices: dict[str, Price] = Field(default_factory=dict)
    dated: str = ""
    source: str = ""


def parse_prices(text: str, name: str) -> PriceList | ToolError:
    """Read a price list; `name` is what errors call it.

    Each table is a provider's, each of its rows a model's: `[openai]` and then `"gpt-4o" = { input = 2.5, output = 10,
    cached_input = 1.25 }`, in USD for a million tokens; `cache_write` may stand there too. `dated` and `source` may
    stand at the top.

    Returns:
        The list, or INVALID_ARGUMENT with the line or the field that is wrong.
    """
    tree = read_toml(text)
    if isinstance(tree, DocumentProblem):
        where = f" (line {tree.line})" if tree.line else ""
        return _wrong(name, f"it is no TOML: {tree.message}{where}")
    head = {key: str(tree.pop(key, "")) for key in ("dated", "source")}
    try:
        tables = _PRICE_TABLES.validate_python(tree, strict=True)
    except ValidationError as error:  # no value is repeated: a number may be endless
        fault = error.errors(include_input=False, include_url=False)[0]
        return _wrong(name, f"{'.'.join(map(str, fault['loc']))} is wrong ({fault['msg']})")
    prices: dict[str, Price] = {}
    for provider, rows in tables.items():
        for model, price in rows.items():
            names = (model, f"{provider}/{model}")
            if twice := next((each for each in names if each in prices), None):
                return _wrong(name, f"{twice!r} in [{provider}] has a price already, in another table")
            prices.update(dict.fromkeys(names, price))
    return PriceList(prices=prices, **head)


_PRICE_TABLES: Final = TypeAdapter(dict[str, dict[str, Price]])


def _wrong(name: str, problem: str) -> ToolError:
    message = f"The price list {name} cannot be used: {problem}. Mend it, or move it away."
    return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)


def with_own(shipped: PriceList, own: PriceList) -> PriceList:
    """The shipped prices with the user's own in place of those of the same name."""
    return shipped.model_copy(update={"prices": {**shipped.prices, **own.prices}})


def find_price(prices: PriceList, model: str) -> Price | None:
    """The price of the model of this name, or None: a price is never guessed from a similar name.

    The name is looked for as it is, alone (`gpt-4o`) or after its provider (`openai/gpt-4o`, or `openai:gpt-4o` as
    LangChain writes it); then without a date at its end (`gpt-4o-2024-08-06`, `claude-sonnet-4-5-20250929`), since
    endpoints answer with the dated name. A dated version with a price of its own has a row of its own, which is found
    first. After a provider only that provider's table counts, and for a few another one (`google_genai:` means google).
    """
    provider, colon, name = model.partition(":")
    named = (f"{provider}/{name}", f"{_TABLES.get(provider, provider)}/{name}") if colon else ()
    tried = (each for whole in (model, *named) for each in (whole, _DATE.sub("", whole)))
    return next((prices.prices[each] for each in tried if each in prices.prices), None)


def cache_parts(input_tokens: int, cached_tokens: int, cache_write_tokens: int) -> tuple[int, int]:
    """Tokens read from the cache and tokens written into it, made countable: both are parts of the input."""
    total = countable(input_tokens)
    cached = min(countable(cached_tokens), total)
    return cached, min(countable(cache_write_tokens), total - cached)


def cost_of(
    price: Price, input_tokens: int, output_tokens: int, cached_tokens: int = 0, cache_write_tokens: int = 0
) -> float:
    """USD for countable tokens; of the input, some were read from the provider's cache and some written into it."""
    cached_price = price.input if price.cached_input is None else price.cached_input
    write_price = price.input if price.cache_write is None else price.cache_write
    paid_in_full = (input_tokens - cached_tokens - cache_write_tokens) * price.input
    cached, written = cached_tokens * cached_price, cache_write_tokens * write_price
    return (paid_in_full + cached + written + output_tokens * price.output) / _MILLION


def most_cost(price: Price, input_tokens: int, output_tokens: int) -> float:
    """USD for these tokens at the most, as nobody knows yet how many of the input the cache has or will be given."""
    dearest = max(price.input, price.cached_input or 0.0, price.cache_write or 0.0)
    return (input_tokens * dearest + output_tokens * price.output) / _MILLION
