"""Who may use a server, and the most that each of them may do: the tenants file. Pure.

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

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.loading import Document, Problem, first_problems, read_document
from mendgraph.graph.configuration.narrowing import Allowance
from mendgraph.nodes.language.documents import DocumentProblem

SHORTEST_TOKEN: Final = 32
"""Characters. A hash hides what nobody can guess, so shorter tokens let nobody in."""

RUNS_AT_ONCE: Final = 4
"""How many runs a user may have at once where the file says nothing."""

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_TAKEN: Final = frozenset({"anonymous", "system", "users"})
"""Names that mean something to the engines: what belongs to `system` is everybody's."""

_ELSEWHERE: Final = {
    "workspace": "a request names the project, which is below `root`",
    "account": "a user's account has the user's name",
    "account_days": "limits of a day are each user's own",
}


@dataclass(frozen=True)
class Tenant:
    """One user: what may be asked for at most is in `context`, and holds where nothing is asked.

    `models` are those that may be named, none meaning that of the context alone.
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
    """All users of a server. Their folders are below `root`."""

    users: Mapping[str, Tenant]
    root: str

    def of_token(self, token: str) -> Tenant | None:
        """The user with this token, None where there is none. All hashes are compared, in constant time."""
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
    """What the file holds of a token."""
    return sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


def is_name(name: str) -> bool:
    """Whether this can be the name of a user or a project: one folder's, and no hidden one."""
    return _NAME.fullmatch(name) is not None


def parse_tenants(text: str, file: str) -> Tenants | tuple[Problem, ...]:
    """The users in `text`, or all that is wrong with it; `file` is what messages call it."""
    document = read_document(text)
    if isinstance(document, DocumentProblem):
        return (Problem(file, f"this is no TOML: {document.message}", document.line, document.column),)

    listed = []
    for path, message in dict.fromkeys(_problems(document)):  # a problem of the defaults counts once
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


# --- What is wrong


class _User(BaseModel):
    """A user's table with the defaults below it; what else it holds is for `AgentContext`."""

    model_config = ConfigDict(extra="allow", strict=True)

    token_sha256: list[Annotated[str, Field(pattern="^[0-9a-f]{64}$")]]
    models: list[Annotated[str, Field(min_length=1)]] = []
    runs_at_once: int = Field(default=RUNS_AT_ONCE, ge=1, le=1_000)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    root: str = Field(pattern=r"^/[^\x00]*$")
    defaults: dict[str, Any] = {}
    users: dict[str, dict[str, Any]] = Field(min_length=1)

    @field_validator("defaults")
    @classmethod
    def _for_all(cls, value: dict[str, Any]) -> dict[str, Any]:
        if "token_sha256" in value:
            raise ValueError("a token belongs to one user: put it into that user's table")
        return value


_Found = Iterator[tuple[tuple[str, ...], str]]
"""The keys that lead to a problem, and the problem."""


def _problems(document: Document) -> _Found:
    try:
        file = _File.model_validate(document.values)
    except ValidationError as error:
        yield from _details_of(error)
        return

    owners: dict[str, str] = {}

    for name, table in file.users.items():
        path = ("users", name)

        if not is_name(name) or name.lower() in _TAKEN:
            taken_names = ", ".join(sorted(_TAKEN))
            yield path, f"{name[:60]!r} cannot be a user's name: up to 64 of A-Z a-z 0-9 . _ -, and not {taken_names}"
        elif owners.setdefault(name.lower(), name) != name:
            yield path, f"{name!r} and {owners[name.lower()]!r} differ in capitals alone, which some disks do not see"

        for inner, message in _table_problems({**file.defaults, **table}):
            if inner and inner[0] in file.defaults and inner[0] not in table:
                yield ("defaults", *inner), message
            else:
                yield (*path, *inner), message

        tokens = table.get("token_sha256")
        if not isinstance(tokens, list):
            continue

        for token in tokens:
            if owners.setdefault(str(token), name) != name:
                message = f"this token is {owners[str(token)]!r}'s already: each user needs one of their own"
                yield (*path, "token_sha256"), message


def _table_problems(table: Mapping[str, Any]) -> _Found:
    try:
        user = _User.model_validate(table)
    except ValidationError as error:
        yield from _details_of(error)
        return

    fields = {name: value for name, value in table.items() if name not in _User.model_fields}
    for name in fields.keys() & _ELSEWHERE.keys():
        yield (name,), f"it cannot be set here: {_ELSEWHERE[name]}"

    if user.models and fields.get("model", user.models[0]) not in user.models:
        yield ("model",), f"it should be one of models, which are {', '.join(user.models)[:200]}"

    try:
        AgentContext.model_validate_json(json.dumps(fields, default=str), strict=True)
    except ValidationError as error:
        yield from _details_of(error)


def _details_of(error: ValidationError) -> _Found:
    for detail in error.errors(include_url=False, include_context=False, include_input=False):
        yield tuple(map(str, detail["loc"])), detail["msg"].removeprefix("Value error, ")
