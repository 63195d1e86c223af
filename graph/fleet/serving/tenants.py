"""The tenants file: the users of a server, and the most that each of them may do. Pure.

root = "/srv/mendgraph"            # a user's projects are the folders <root>/<user>/<project>

[defaults]                         # for all users: fields of AgentContext, `models`, `runs_at_once`
base_url = "http://models.internal:8000/v1"
models = ["qwen3-coder", "qwen3-small"]
max_cost_usd_per_day = 5

[users.ann]                        # the same fields, for her alone
token_sha256 = ["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]
runs_at_once = 4
"""

import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import Problem, first_problems, read_document
from mendgraph.graph.configuration.narrowing import Allowance
from mendgraph.nodes.language.documents import DocumentProblem

SHORTEST_TOKEN: Final = 32
"""The least characters of a token: the hash of a shorter one could be guessed."""

RUNS_AT_ONCE: Final = 4
"""The default number of concurrent runs of a user."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_RESERVED: Final = frozenset({"anonymous", "system", "users"})
"""Names with a meaning for the engines: resources of `system` are everybody's."""

_NOT_SETTABLE: Final = {
    "workspace": "a request names the project, which is below `root`",
    "account": "a user's account has the user's name",
    "account_days": "limits of a day are each user's own",
}


@dataclass(frozen=True)
class Tenant:
    """One user. `context` is the most that a request may set, and the default.

    `models` are those that a request may name; if empty, only that of the context.
    """

    name: str
    hashes: tuple[str, ...] = field(repr=False)
    context: AgentContext
    models: tuple[str, ...] = ()
    runs_at_once: int = RUNS_AT_ONCE

    @property
    def allowance(self) -> Allowance:
        """The most that this user's runs may do."""
        refusal = f"This server does not allow {self.name} what the request sets: {{}}. Leave it out."
        return Allowance(self.context, self.models, refusal)


@dataclass(frozen=True)
class Tenants:
    """The users of a server. Their folders are below `root`."""

    users: Mapping[str, Tenant]
    root: str

    def of_token(self, token: str) -> Tenant | None:
        """Return the user with this token, if there is one. All hashes are compared, in constant time."""
        digest = token_hash(token)
        match = None

        for tenant in self.users.values():
            for stored_hash in tenant.hashes:
                if hmac.compare_digest(stored_hash, digest):
                    match = tenant

        if len(token) < SHORTEST_TOKEN:
            return None

        return match


def token_hash(token: str) -> str:
    """Return the hash of a token, as the file holds it."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_name(name: str) -> bool:
    """Return whether a user or a project may have this name: that of one folder, which is not hidden."""
    return _NAME.fullmatch(name) is not None


def parse_tenants(text: str, file: str) -> Tenants | tuple[Problem, ...]:
    """Parse the text of the file; return all its problems if there are any. Messages name it `file`."""
    document = read_document(text)
    if isinstance(document, DocumentProblem):
        return (Problem(file, f"this is not TOML: {document.message}", document.line, document.column),)

    listed = []
    for path, message in dict.fromkeys(_problems(document.values)):  # a problem of the defaults counts once
        field = ".".join(path)
        listed.append(Problem(file, f"{field}: {message}", document.line(path), field=field))

    problems = first_problems(listed, file)
    if problems:
        return problems

    defaults = document.values.get("defaults", {})
    users = {name: _tenant(name, {**defaults, **table}) for name, table in document.values["users"].items()}
    return Tenants(users, document.values["root"])


def _tenant(name: str, table: Mapping[str, Any]) -> Tenant:
    fields = {key: value for key, value in table.items() if key in AgentContext.model_fields}
    models = tuple(table.get("models", ()))
    if models:
        fields.setdefault("model", models[0])

    context = AgentContext.model_validate({**fields, "account": name, "account_days": True})
    hashes = tuple(table["token_sha256"])
    return Tenant(name, hashes, context, models, table.get("runs_at_once", RUNS_AT_ONCE))


# --- Problems


class _User(AgentContext):
    """A user's table, merged with the defaults."""

    token_sha256: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    models: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    runs_at_once: int = Field(default=RUNS_AT_ONCE, ge=1, le=1_000)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")

    root: str = Field(pattern=r"^/[^\x00]*$")
    defaults: dict[str, Any] = {}
    users: dict[str, _User] = Field(min_length=1)


_Problems = Iterator[tuple[tuple[str, ...], str]]
"""The path of keys to each problem, and its message."""


def _problems(values: Mapping[str, Any]) -> _Problems:
    defaults = values.get("defaults", {})
    users = values.get("users", {})
    if not isinstance(defaults, dict) or not isinstance(users, dict):
        yield (), "defaults and users are tables: write [defaults] and [users.NAME]"
        return
    if "token_sha256" in defaults:
        yield ("defaults",), "a token belongs to one user: put it into that user's table"
        return

    merged = {name: {**defaults, **table} if isinstance(table, dict) else table for name, table in users.items()}
    document = {**values, "users": merged} if users else values
    try:
        file = _File.model_validate_json(json.dumps(document, default=str), strict=True)
    except ValidationError as error:
        for detail in error.errors(include_url=False, include_context=False, include_input=False):
            path = tuple(map(str, detail["loc"]))
            if len(path) > 2 and path[2] in defaults and path[2] not in users[path[1]]:
                path = ("defaults", *path[2:])
            yield path, detail["msg"].removeprefix("Value error, ")
        return

    owners: dict[str, str] = {}
    for name, user in file.users.items():
        for key, message in _user_problems(name, user, owners):
            yield ("users", name, *key), message


def _user_problems(name: str, user: _User, owners: dict[str, str]) -> _Problems:
    """Yield what a schema cannot check. `owners` has the users of the names and tokens so far."""
    if not is_name(name) or name.lower() in _RESERVED:
        reserved = ", ".join(sorted(_RESERVED))
        yield (), f"{name[:60]!r} cannot be a user's name: up to 64 of A-Z a-z 0-9 . _ -, and not {reserved}"
    elif owners.setdefault(name.lower(), name) != name:
        yield (), f"{name!r} and {owners[name.lower()]!r} differ only in case, which some disks ignore"

    for key in user.model_fields_set & _NOT_SETTABLE.keys():
        yield (key,), f"it cannot be set here: {_NOT_SETTABLE[key]}"

    if user.models and "model" in user.model_fields_set and user.model not in user.models:
        yield ("model",), f"it should be one of models, which are {', '.join(user.models)[:200]}"

    for token in user.token_sha256:
        if owners.setdefault(token, name) != name:
            message = f"this token belongs to {owners[token]!r}: each user needs a different one"
            yield ("token_sha256",), message
