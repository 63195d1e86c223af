"""The list of prices: the shipped ones, replaced by the user's own of the same name."""

import os
from importlib import resources

from mendgraph.graph.configuration.loading import PRICES_FILE, read_named_file
from mendgraph.nodes.call_model.prices import PRICES_VARIABLE, PriceList, parse_prices
from mendgraph.nodes.records import ToolError, quoted


def load_prices() -> PriceList | ToolError:
    """Return the shipped prices, replaced by the user's own of the same name.

    The user's are in the file that `MENDGRAPH_PRICES` names, which then has to exist; otherwise in `prices.toml` in the
    platform's configuration folder. An unreadable or invalid file is an error.
    """
    ours = resources.files("mendgraph.nodes.call_model").joinpath(PRICES_FILE).read_text(encoding="utf-8")
    shipped = parse_prices(ours, f"{PRICES_FILE} of mendgraph")
    source = read_named_file(PRICES_FILE, os.environ.get(PRICES_VARIABLE), PRICES_VARIABLE)

    if isinstance(shipped, ToolError) or source is None:
        return shipped

    path, text = source
    if isinstance(text, ToolError):
        return text

    prices = parse_prices(text, quoted(path))
    if isinstance(prices, ToolError):
        return prices

    return {**shipped, **prices}
