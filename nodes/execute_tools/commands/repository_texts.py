"""Files of repositories as programs see them: without passwords of remotes, tokens and headers that log in.

Where a file holds some, a program finds a copy without them in its place; in a sandbox without a network it does not
need them. Source: git-config(1), "Syntax".
"""

import os
import re
from typing import Final

from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import CONTENT_BYTES
from mendgraph.nodes.workspace.files.handles import closing, open_regular

SETTINGS_NAMES: Final = frozenset({"config", "config.worktree"})

_LARGEST_SETTINGS: Final = 1_000_000

_CONTINUED: Final = re.compile(r"\\\r?\n")
"""A value that continues on the next line, where a password may be cut."""
_USER: Final = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]{0,20}://)(?P<user>[^\s/@:]{0,500})[^\s/]{0,1000}@")
_LOGIN_KEY: Final = re.compile(
    r"^(?P<key>[ \t]*(?:\[[^\]\n]{0,500}\][ \t]*)?[\w.-]{0,50}?"
    r"(?:pass|token|secret|header|cookie|helper|auth(?!or))[\w.-]{0,50}[ \t]*=)[^\n]+$",
    re.IGNORECASE | re.MULTILINE,
)


def without_logins(text: str) -> str:
    """Return the text of a repository's file without logins; the same object if it has none."""
    joined = _CONTINUED.sub("", text)
    clean = _USER.sub(_without_password, joined)
    clean = _LOGIN_KEY.sub(r"\g<key>", clean)
    clean = Redactor().text(clean)

    return text if clean == joined else clean


def _without_password(match: re.Match[str]) -> str:
    """Return the start of a URL without its login; SSH needs the name of the user, which may be a token elsewhere."""
    if match["user"] and "ssh" in match["scheme"].lower():
        return f"{match['scheme']}{match['user']}@"

    return match["scheme"]


def repository_text(folder_fd: int, parts: tuple[str, ...]) -> bytes | None:
    """Return the content that a program sees in place of this file below the open folder; None for the file itself.

    A settings file that is too large to be read is empty for programs.
    """
    is_settings = parts[-1] in SETTINGS_NAMES
    most = _LARGEST_SETTINGS if is_settings else CONTENT_BYTES

    try:
        descriptor, _ = open_regular(folder_fd, parts, os.O_RDONLY)
    except OSError:  # it was just removed, or programs may not read it either
        return None

    with closing(descriptor):
        data = os.pread(descriptor, most + 1, 0)

    if len(data) > most:
        return b"" if is_settings else None

    text = data.decode("utf-8", "surrogateescape")
    clean = without_logins(text)
    if clean == text:
        return None

    return clean.encode("utf-8", "surrogateescape")
