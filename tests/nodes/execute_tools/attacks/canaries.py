"""Secrets that are planted wherever one may come from, and the search for them in all that a run leaves behind.

No secret stands here as a whole: each is put together from pieces, and each is another one, so that a finding names
the way on which it got out.
"""

import base64
import hashlib
import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, quote_plus

_SHORTEST_PART = 14
"""Characters of a secret that are as good as all of it."""


def _made(name: str, *prefix: str, length: int = 36) -> str:
    """A key with this prefix, whose rest is its own."""
    letters = base64.b64encode(hashlib.sha512(name.encode()).digest()).decode()
    return "".join(prefix) + "".join(filter(str.isalnum, letters))[:length]


@dataclass(frozen=True)
class Planted:
    """The secrets, by the way on which a run comes to know them."""

    endpoint_key: str = "-".join(("quokka", "4471", "lantern", "88"))
    variable: str = "".join(("Wombat/9b2+", "Dune=7&", 'ü"x'))
    denied_file: str = "-".join(("zebra", "7731", "harbour", "19"))
    source_file: str = _made("source_file", "gh", "p_")
    json_file: str = "".join(("x8K!", "qP2zzz", "Vw4#e"))
    request: str = _made("request", "s", "k-ant-api03-", length=40)
    reply: str = _made("reply", "gl", "pat-", length=20)
    streamed: str = _made("streamed", "np", "m_")
    arguments: str = _made("arguments", "AI", "za", length=35)
    broken_call: str = _made("broken_call", "h", "f_", length=34)
    exception: str = _made("exception", "git", "hub_pat_", length=40)
    endpoint_error: str = _made("endpoint_error", "gs", "k_", length=52)
    large_result: str = _made("large_result", "s", "k-proj-", length=40)
    plan: str = _made("plan", "tv", "ly-dev-", length=32)
    key_block: str = _made("key block", length=64)

    def items(self) -> Iterator[tuple[str, str]]:
        """Name and value of each."""
        yield from vars(self).items()

    def environment(self) -> dict[str, str]:
        """The variables of the process."""
        return {"OPENAI_API_KEY": self.endpoint_key, "FOO_TOKEN": self.variable}

    def key_file(self) -> str:
        """A source file with a private key of four lines in it, of which the third is the secret."""
        kind, lines = " ".join(("RSA", "PRIVATE", "KEY")), [_made(f"line {number}", length=64) for number in range(3)]
        body = "\n".join((*lines[:2], self.key_block, lines[2]))
        return f'KEY = """-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"""\nlimit = 10\n'

    def files(self) -> dict[str, str]:
        """The files of the workspace."""
        known = f'KNOWN = "{base64.b64encode(self.endpoint_key.encode()).decode()}"\n# {self.variable}\n'
        return {
            "app.py": f'import client\n\nlimit = 10\napi = client.Client("{self.source_file}")\nretries = 3\n',
            "settings.json": json.dumps({"db": {"user": "ada", "password": self.json_file}, "limit": 10}, indent=2),
            "known.py": known,
            ".env": f"BAR={self.denied_file}\n",
        }


PLANTED = Planted()


def forms(secret: str) -> set[bytes]:
    """How a secret may stand in what is written, whole or in good part."""
    data = secret.encode()
    parts = {secret[start : start + _SHORTEST_PART] for start in range(max(1, len(secret) - _SHORTEST_PART + 1))}
    found = {
        secret,
        json.dumps(secret)[1:-1],
        json.dumps(json.dumps(secret))[3:-3],
        repr(secret)[1:-1],
        quote(secret, safe=""),
        quote_plus(secret),
        base64.b64encode(data).decode().rstrip("=")[:-1],
        base64.urlsafe_b64encode(data).decode().rstrip("=")[:-1],
        data.hex(),
        *parts,
    }
    return {form.encode() for form in found}


_FORMS = {name: forms(secret) for name, secret in PLANTED.items()}


def found_in(data: bytes | str) -> set[str]:
    """The names of the secrets that these bytes hold, with the form."""
    written = data.encode("utf-8", "surrogatepass") if isinstance(data, str) else data
    return {name for name, known in _FORMS.items() if any(form in written for form in known)}


def everything_below(folder: Path, but: Path) -> bytes:
    """The names and bytes of all files in a folder, but for those in `but`; and each cell of each database.

    A page of a database may cut a text in two, so its cells are read as well.
    """
    parts = []
    for path in sorted(folder.rglob("*")):
        if path.is_relative_to(but) or not path.is_file():
            continue
        parts += [str(path).encode(), path.read_bytes()]
        if path.suffix == ".db":
            parts += cells(path)
    return b"\n".join(parts)


def cells(database: Path) -> Iterator[bytes]:
    """Each value of each row of each table."""
    opened = sqlite3.connect(database)
    try:
        tables = [name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        for table in tables:
            for row in opened.execute(f'SELECT * FROM "{table}"'):  # noqa: S608 - a name that the database gave us
                yield from (cell if isinstance(cell, bytes) else str(cell).encode() for cell in row)
    finally:
        opened.close()


def leaks(places: Mapping[str, bytes | str]) -> dict[str, set[str]]:
    """By place, the secrets that were found there; nothing for a place without any."""
    found = {place: found_in(data) for place, data in places.items()}
    return {place: names for place, names in found.items() if names}
