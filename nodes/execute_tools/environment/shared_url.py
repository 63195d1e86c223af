"""Which database is shared, and how it is named to people: never with its password."""

import os
import re
import sys
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from nodes.execute_tools.environment.database import StoreError
from nodes.execute_tools.environment.failures import quoted

STORE_URL_VARIABLE: Final = "MENDGRAPH_STORE_URL"
"""Holds the URL of the PostgreSQL database in which all is kept; only the environment has it, as with its password."""

HIDDEN: Final = "***"

_SCHEMES: Final = ("postgresql", "postgres")
_SECRET: Final = re.compile(r"pass|key|secret|token", re.IGNORECASE)
_MODULES: Final = ("psycopg", "langgraph.checkpoint.postgres")
_HOW: Final = "postgresql://user:password@host:5432/database"


@dataclass(frozen=True)
class SharedUrl:
    """A URL, which nobody shows, what it is called, and what of it must never be told."""

    url: str = field(repr=False)
    name: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """The text on one line, without what must never be told."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def is_shared() -> bool:
    """Whether runs are kept in a shared database rather than in one for each workspace."""
    return bool(os.environ.get(STORE_URL_VARIABLE, "").strip())


def shared_url() -> SharedUrl | None:
    """The shared database, None where each workspace has its own.

    Raises:
        StoreError: the variable holds something else than the URL of a PostgreSQL database, or what speaks to one is
            not installed.
    """
    given = os.environ.get(STORE_URL_VARIABLE, "").strip()
    if not given:
        return None
    url = read_url(given)
    if not all(map(_is_there, _MODULES)):
        message = (
            f"{STORE_URL_VARIABLE} names a PostgreSQL database, and what speaks to one is not installed:"
            " pip install 'mendgraph[postgres]'."
        )
        raise StoreError(message)
    return url


@lru_cache(8)
def read_url(given: str) -> SharedUrl:
    """The parts of a URL.

    Raises:
        StoreError: it is none of a PostgreSQL database.
    """
    scheme = given.partition("://")[0].lower()
    if "://" not in given or scheme not in _SCHEMES:
        message = f"{STORE_URL_VARIABLE} is no URL of a PostgreSQL database: write {_HOW}, or remove the variable."
        raise StoreError(message)
    try:
        parts = urlsplit(given)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        user, password, host, port = parts.username, parts.password, parts.hostname, parts.port
    except ValueError:
        raise unreadable() from None
    secrets = {password or "", *(value for name, value in options.items() if _SECRET.search(name))}
    plain = {unquote(secret) for secret in secrets if secret}
    whole = {*secrets, *plain, *(quote(secret, safe="") for secret in plain)} - {""}
    database = unquote(parts.path.removeprefix("/")) or options.get("dbname") or unquote(user or "") or "?"
    place = unquote(host or options.get("host") or options.get("hostaddr") or "this machine")
    if set(parts.path[1:]) & set("@:/"):  # part of a password, most likely, that was not written as it has to be
        raise unreadable()
    name = f"{quoted(database)} on {place}{f':{port}' if port else ''}"
    found = SharedUrl(given, "", tuple(sorted(whole, key=len, reverse=True)))
    return SharedUrl(given, found.clean(name), found.secrets)


def _is_there(module: str) -> bool:
    try:
        return sys.modules.get(module) is not None or find_spec(module) is not None
    except ImportError:
        return False


def unreadable() -> StoreError:
    """The error for a URL that cannot be taken apart. Nothing of it is repeated: that could be the password."""
    return StoreError(
        f"{STORE_URL_VARIABLE} cannot be read: write {_HOW}, and the signs @ : / ? # % of a password as %40 %3A %2F %3F"
        " %23 %25."
    )
