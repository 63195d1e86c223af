"""Which PostgreSQL database holds the store, and which of its workspaces is this one.

The database is named to people without its password; a workspace's name is a file in its folder of records, and moves
with it.
"""

import os
import re
import secrets
import sys
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.util import find_spec
from typing import Final
from urllib.parse import quote

from mendgraph.nodes.execute_tools.files.atomic_write import name_exclusively, sync_folder, write_temporary
from mendgraph.nodes.execute_tools.files.failures import os_failure, quoted
from mendgraph.nodes.execute_tools.files.handles import closing, open_root
from mendgraph.nodes.execute_tools.store.database import StoreError
from mendgraph.nodes.records import ToolError, ToolErrorCode

STORE_URL_VARIABLE: Final = "MENDGRAPH_STORE_URL"
"""Holds the URL of the PostgreSQL database in which all is kept; only the environment has it, as with its password."""

_MODULES: Final = ("psycopg", "langgraph.checkpoint.postgres")
_HOW: Final = "postgresql://user:password@host:5432/database"
_UNREADABLE: Final = (
    f"{STORE_URL_VARIABLE} cannot be read: write {_HOW}, and the signs @ : / ? # % of a password as %40 %3A %2F %3F %23"
    " %25."
)


@dataclass(frozen=True)
class PostgresUrl:
    """A URL, which nobody shows, what it is called, and what of it must never be told."""

    url: str = field(repr=False)
    name: str
    secrets: tuple[str, ...] = field(repr=False)

    def clean(self, text: str) -> str:
        """The text on one line, without what must never be told."""
        for secret in self.secrets:
            text = text.replace(secret, "***")
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
    return read_url(given) if given else None


@lru_cache(8)
def read_url(given: str) -> PostgresUrl:
    """The parts of a URL, as libpq reads them. Raises StoreError: it is none of a PostgreSQL database."""
    if not given.lower().startswith(("postgresql://", "postgres://")):
        message = f"{STORE_URL_VARIABLE} is no URL of a PostgreSQL database: write {_HOW}, or remove the variable."
        raise StoreError(message)
    if not all(map(_is_there, _MODULES)):
        message = (
            f"{STORE_URL_VARIABLE} names a PostgreSQL database, and what speaks to one is not installed:"
            " pip install 'mendgraph[postgres]'."
        )
        raise StoreError(message)
    from psycopg import ProgrammingError
    from psycopg.conninfo import conninfo_to_dict

    try:
        parts = {name: str(value) for name, value in conninfo_to_dict(given).items()}
    except ProgrammingError:
        raise StoreError(_UNREADABLE) from None
    database = parts.get("dbname") or parts.get("user") or "?"
    if set(parts.get("dbname", "")) & set("@:/"):  # most likely of a password that was not written as it has to be
        raise StoreError(_UNREADABLE)
    hidden = [value for name, value in parts.items() if "pass" in name and value]
    place = parts.get("host") or parts.get("hostaddr") or "this machine"
    port = f":{parts['port']}" if "port" in parts else ""
    forms = (given, *hidden, *(quote(each, safe="") for each in hidden))
    found = PostgresUrl(given, "", tuple(sorted(forms, key=len, reverse=True)))
    return replace(found, name=found.clean(f"{quoted(database)} on {place}{port}"))


def _is_there(module: str) -> bool:
    try:
        return sys.modules.get(module) is not None or find_spec(module) is not None
    except ImportError:
        return False


# --- The name of a workspace

FILE_NAME: Final = "shared_name"

LONGEST_NAME: Final = 200
"""Characters. Each row of the shared store has it."""

_NAME: Final = re.compile(rf"[A-Za-z0-9][A-Za-z0-9._@+=/-]{{0,{LONGEST_NAME - 1}}}")
_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


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
        found = _write(folder, name) or _read(folder) or name
    return found


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
        with closing(open_root(folder)) as handle:
            write_temporary(handle, new, f"{name}\n".encode("ascii"), mode=0o600)
            try:
                name_exclusively(handle, new, FILE_NAME)
            except FileExistsError:
                os.unlink(new, dir_fd=handle)
            sync_folder(handle)
    except OSError as error:
        return os_failure(error, "name the workspace in", folder)
    return None
