"""Which PostgreSQL database holds the store, and which of its workspaces is this one.

The database is named to people without its password; a workspace's name is a file in its folder of records, and moves
with it.
"""

import os
import re
import secrets
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import ToolError, ToolErrorCode

STORE_URL_VARIABLE: Final = "MENDGRAPH_STORE_URL"
"""Holds the URL of the PostgreSQL database in which all is kept; only the environment has it, as with its password."""

HIDDEN: Final = "***"

_SCHEMES: Final = ("postgresql", "postgres")
_SECRET: Final = re.compile(r"pass|key|secret|token", re.IGNORECASE)
_MODULES: Final = ("psycopg", "langgraph.checkpoint.postgres")
_HOW: Final = "postgresql://user:password@host:5432/database"


@dataclass(frozen=True)
class PostgresUrl:
    """A URL, which nobody shows, what it is called, and what of it must never be told."""

    url: str = field(repr=False)
    name: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """The text on one line, without what must never be told."""
        for secret in self.secrets:
            text = text.replace(secret, HIDDEN)
        return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def uses_postgres() -> bool:
    """Whether runs are kept in a shared database rather than in one for each workspace."""
    return bool(os.environ.get(STORE_URL_VARIABLE, "").strip())


def postgres_url() -> PostgresUrl | None:
    """The shared database, None where each workspace has its own.

    Raises StoreError: the variable holds something else than the URL of a PostgreSQL database, or what speaks to one is
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
def read_url(given: str) -> PostgresUrl:
    """The parts of a URL. Raises StoreError: it is none of a PostgreSQL database."""
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
    found = PostgresUrl(given, "", tuple(sorted(whole, key=len, reverse=True)))
    return PostgresUrl(given, found.clean(name), found.secrets)


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


# --- The name of a workspace

FILE_NAME: Final = "shared_name"

LONGEST_NAME: Final = 200
"""Characters. Each row of the shared store has it."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+=/-]{{0,{LONGEST_NAME - 1}}}")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def workspace_name(folder: str) -> str:
    """The name of the workspace whose folder of records this is; a random one is given where it has none.

    Raises StoreError: it cannot be read or written, or is no name.
    """
    given = _given(folder, secrets.token_hex(16))
    if isinstance(given, ToolError):
        raise StoreError(given.message)
    return given


def known_workspace_name(folder: str) -> str | None:
    """The name of the workspace; None where none was given yet, or it cannot be read. Nothing is made."""
    found = _read(folder)
    return None if isinstance(found, ToolError) else found


def give_workspace_name(folder: str, name: str) -> ToolError | None:
    """Give the workspace whose folder of records this is a name of one's own, such as "<user>/<project>".

    The same name once more is no error. CONFLICT says that it has another one, under which its runs are kept;
    INVALID_ARGUMENT, which signs a name is made of.
    """
    if not _NAME.fullmatch(name):
        message = (
            f"A workspace cannot be called {quoted(name)} in a shared store: give up to {LONGEST_NAME} letters, digits"
            " and signs out of '._@+=/-', the first of them a letter or digit."
        )
        return ToolError(code=ToolErrorCode.INVALID_ARGUMENT, message=message)
    found = _given(folder, name)
    if isinstance(found, ToolError):
        return found
    if found != name:
        message = (
            f"The workspace is called {quoted(found)} in the shared store and cannot be called {quoted(name)} as well:"
            " its runs are kept under the first name."
        )
        return ToolError(code=ToolErrorCode.CONFLICT, message=message)
    return None


def _given(folder: str, name: str) -> str | ToolError:
    """The name that the workspace has, which is `name` where it had none."""
    found = _read(folder)
    if found is None:
        refused = _write(folder, name)
        found = _read(folder) if refused is None else refused
    return name if found is None else found


def _read(folder: str) -> str | ToolError | None:
    path = os.path.join(folder, FILE_NAME)
    try:
        with closing(os.open(path, _READ)) as descriptor:
            name = os.read(descriptor, 4 * LONGEST_NAME).decode("ascii", "replace").removesuffix("\n")
    except FileNotFoundError:
        return None
    except OSError as error:
        return os_failure(error, "read", path)
    if _NAME.fullmatch(name):
        return name
    message = f"The file {quoted(path)} holds no name of a workspace: put back what it held, or remove it."
    return ToolError(code=ToolErrorCode.IO_ERROR, message=message)


def _write(folder: str, name: str) -> ToolError | None:
    """Make the file, whole and on the disk, unless somebody was faster."""
    new = f".{FILE_NAME}.{secrets.token_hex(8)}"
    try:
        with closing(os.open(folder, _DIRECTORY)) as handle:
            try:
                with closing(os.open(new, _WRITE, 0o600, dir_fd=handle)) as descriptor:
                    os.write(descriptor, f"{name}\n".encode("ascii"))
                    os.fsync(descriptor)
                with suppress(FileExistsError):
                    os.link(new, FILE_NAME, src_dir_fd=handle, dst_dir_fd=handle)
                os.fsync(handle)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(new, dir_fd=handle)
    except OSError as error:
        return os_failure(error, "name the workspace in", folder)
    return None
