"""The tenants file of this process, and what is decided by it; a server without one does not start."""

import os
from functools import lru_cache
from typing import Final

from mendgraph.graph.configuration.loading import shown
from mendgraph.graph.fleet.serving.admission import FrontDesk
from mendgraph.graph.fleet.serving.folders import load_resolver
from mendgraph.graph.fleet.serving.locks import open_locks
from mendgraph.graph.fleet.serving.tenants import Tenants, parse_tenants
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.execute_tools.store.user_files import read_user_file
from mendgraph.nodes.records import ToolError

TENANTS_VARIABLE: Final = "MENDGRAPH_TENANTS"
"""Names the file."""


class CannotServeError(RuntimeError):
    """Why there is no server, in one line."""


def load_tenants() -> Tenants:
    """The users of this server.

    Raises:
        CannotServeError: there is no file, or it is wrong.
    """
    path = os.environ.get(TENANTS_VARIABLE, "").strip()
    if not path:
        raise CannotServeError(f"Name the file with the server's users in {TENANTS_VARIABLE}.")
    text = read_user_file(path)
    if isinstance(text, ToolError):
        raise CannotServeError(f"{text.message} {TENANTS_VARIABLE} names it.")
    found = parse_tenants(text, shown(path))
    if isinstance(found, Tenants):
        return found
    first, *others = map(str, found)
    raise CannotServeError(f"{first}{f' (and {len(others)} more problems)' if others else ''}")


@lru_cache(1)
def open_desk() -> FrontDesk:
    """The one of this process.

    Raises:
        CannotServeError: there is no file, it is wrong, or what it names cannot be used.
    """
    tenants = load_tenants()
    try:
        return FrontDesk(tenants, load_resolver(tenants), open_locks())
    except (ValueError, StoreError) as error:
        raise CannotServeError(" ".join(str(error).split())) from None
