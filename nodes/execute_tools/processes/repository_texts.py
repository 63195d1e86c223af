"""The settings of repositories as programs see them: without passwords of remotes, tokens and headers that log in.

Where a file holds some, a program finds a copy without them in its place. In a sandbox without a network they are of no
use. Source: git-config(1), "Syntax".
"""

import os
import re
import time
from typing import Final

from mendgraph.nodes.execute_tools.files.handles import closing, open_regular
from mendgraph.nodes.execute_tools.processes.workspace_cover import SETTLED_NS
from mendgraph.nodes.execute_tools.secrets.redact import Redactor
from mendgraph.nodes.records import CONTENT_BYTES

SETTINGS_NAMES: Final = frozenset({"config", "config.worktree"})

_LARGEST_SETTINGS: Final = 1_000_000
_REMEMBERED: Final = 10_000

_CONTINUED: Final = re.compile(r"\\\r?\n")
"""A value goes on in the next line: a password may be cut there."""
_USER: Final = re.compile(r"(?P<scheme>[A-Za-z][\w+.-]{0,20}://)(?P<user>[^\s/@:]{0,500})[^\s/]{0,1000}@")
_LOGIN_KEY: Final = re.compile(
    r"^(?P<key>[ \t]*(?:\[[^\]\n]{0,500}\][ \t]*)?[\w.-]{0,50}?"
    r"(?:pass|token|secret|header|cookie|helper|auth(?!or))[\w.-]{0,50}[ \t]*=)[^\n]+$",
    re.IGNORECASE | re.MULTILINE,
)


def without_logins(text: str) -> str:
    """Settings of git, or another text of a repository, without what logs in; the same text where there is nothing."""
    joined = _CONTINUED.sub("", text)
    clean = _USER.sub(_without_password, joined)
    clean = _LOGIN_KEY.sub(r"\g<key>", clean)
    clean = Redactor().text(clean)

    return text if clean == joined else clean


def _without_password(found: re.Match[str]) -> str:
    """Names of users are needed for SSH; elsewhere they may be tokens."""
    keeps_user = "ssh" in found["scheme"].lower() and found["user"]
    if keeps_user:
        return f"{found['scheme']}{found['user']}@"

    return found["scheme"]


class RepositoryTexts:
    """Replaces texts of repositories that hold logins; each is read again only after it has changed."""

    def __init__(self) -> None:
        self._known: dict[tuple[str | int, ...], bytes | None] = {}

    def replacement(self, folder_fd: int, parts: tuple[str, ...], name: str) -> bytes | None:
        """What a program is to see in place of this file below the open folder; None where that is the file itself.

        `name` tells the file from others. A text that is too large is replaced if it holds settings.
        """
        try:
            descriptor, status = open_regular(folder_fd, parts, os.O_RDONLY)
        except OSError:  # it was there a moment ago, or programs may not read it either
            return None

        with closing(descriptor):
            key = (name, status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            if key in self._known:
                return self._known[key]

            if parts[-1] in SETTINGS_NAMES:
                most = _LARGEST_SETTINGS
            else:
                most = CONTENT_BYTES

            data = os.pread(descriptor, most + 1, 0)

        clean = _clean(data)
        if len(data) > most:
            clean = b"" if parts[-1] in SETTINGS_NAMES else None

        if time.time_ns() - status.st_ctime_ns > SETTLED_NS:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()

            self._known[key] = clean

        return clean


def _clean(data: bytes) -> bytes | None:
    text = data.decode("utf-8", "surrogateescape")
    clean = without_logins(text)
    if clean == text:
        return None

    return clean.encode("utf-8", "surrogateescape")
