"""Where prices come from: the list that is shipped, and the user's own."""

import os
from importlib import resources
from typing import Final

from mendgraph.nodes.call_model.prices import PRICES_VARIABLE, PriceList, parse_prices, with_own
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.store.user_files import configuration_file, read_user_file
from mendgraph.nodes.records import ToolError, ToolErrorCode

FILE_NAME: Final = "prices.toml"


def load_prices() -> PriceList | ToolError:
    """The shipped prices, with the user's own in place of those of the same name.

    The user's are in the file that `MENDGRAPH_PRICES` names, which then has to be there; otherwise in `prices.toml` in
    the platform's configuration folder, if there is one. A file that cannot be read, or is no price list, is an error.
    """
    text = resources.files("mendgraph.nodes.call_model").joinpath(FILE_NAME).read_text(encoding="utf-8")
    shipped = parse_prices(text, f"{FILE_NAME} of mendgraph")
    named = os.environ.get(PRICES_VARIABLE, "")
    own = _own_prices(named)
    if isinstance(shipped, ToolError) or own is None:
        return shipped
    return own if isinstance(own, ToolError) else with_own(shipped, own)


def _own_prices(named: str) -> PriceList | ToolError | None:
    """The user's prices; None where there are none."""
    path = named or configuration_file(FILE_NAME)
    if isinstance(path, ToolError):
        return None
    text = read_user_file(path)
    if not isinstance(text, ToolError):
        return parse_prices(text, quoted(path))
    if not named:
        return None if text.code is ToolErrorCode.NOT_FOUND else text
    return text.model_copy(update={"message": f"{text.message} Mend what {PRICES_VARIABLE} says, or leave it empty."})
