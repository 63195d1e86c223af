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
from typing import Any, Final

from pydantic import ValidationError

from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.configuration.narrowing import Allowance
from mendgraph.graph.configuration.settings_file import Document, Problem, first_problems, read_document
from mendgraph.nodes.language.documents import DocumentProblem
from mendgraph.nodes.language.names import closest_names

SHORTEST_TOKEN: Final = 32
"""Characters. A hash hides what nobody can guess, so shorter tokens let nobody in."""

RUNS_AT_ONCE: Final = 4
"""How many runs a user may have at once where the file says nothing."""

MOST_RUNS_AT_ONCE: Final = 1_000

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_HASH: Final = re.compile(r"[0-9a-f]{64}")
_FUNCTION: Final = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
_TAKEN: Final = frozenset({"anonymous", "system", "users"})
"""Names that mean something to the engines: what belongs to `system` is everybody's."""

_TOP: Final = ("root", "resolver", "defaults", "users")
_OURS: Final = ("models", "runs_at_once")
_ELSEWHERE: Final = {
    "workspace": "a request names the project, and `root` or `resolver` says where that is",
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
    """All users of a server. Their folders are below `root`, or where the function `resolver` says."""

    users: Mapping[str, Tenant]
    root: str = ""
    resolver: str = ""

    def of_token(self, token: str) -> Tenant | None:
        """Who has this token, None for nobody. All hashes are compared, in constant time."""
        digest, found = token_hash(token), None
        for tenant in self.users.values():
            for known in tenant.hashes:
                if hmac.compare_digest(known, digest):
                    found = tenant
        return found if len(token) >= SHORTEST_TOKEN else None


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
    problems = first_problems(
        (Problem(file, message, document.line(path), field=".".join(path)) for path, message in _problems(document)),
        file,
    )
    if problems:
        return problems
    defaults = document.values.get("defaults", {})
    users = {name: _tenant(name, {**defaults, **table}) for name, table in document.values["users"].items()}
    return Tenants(users, document.values.get("root", ""), document.values.get("resolver", ""))


def _tenant(name: str, table: Mapping[str, Any]) -> Tenant:
    fields = {key: value for key, value in table.items() if key in AgentContext.model_fields}
    models = tuple(table.get("models", ()))
    if models:
        fields.setdefault("model", models[0])
    context = AgentContext.model_validate({**fields, "account": name, "account_days": True})
    hashes = tuple(table["token_sha256"])
    return Tenant(name, hashes, context, models, table.get("runs_at_once", RUNS_AT_ONCE))


# --- What is wrong


_Found = Iterator[tuple[tuple[str, ...], str]]
"""The keys that lead to a problem, and the problem."""


def _problems(document: Document) -> _Found:
    values = document.values
    for key in values:
        if key not in _TOP:
            yield (key,), f"there is no setting {key[:60]!r} here: {', '.join(_TOP)} are the keys at the top"
    yield from _place_problems(values)
    defaults, users = values.get("defaults", {}), values.get("users", {})
    if not isinstance(defaults, dict) or not isinstance(users, dict):
        yield (("defaults",) if not isinstance(defaults, dict) else ("users",)), "this should be a table"
        return
    if not users:
        yield ("users",), "there are no users: write a table for each, such as [users.ann]"
    if "token_sha256" in defaults:
        yield ("defaults", "token_sha256"), "a token belongs to one user: put it into that user's table"
    yield from _table_problems(("defaults",), {k: v for k, v in defaults.items() if k != "token_sha256"}, {})
    owners: dict[str, str] = {}
    for name, table in users.items():
        path = ("users", name)
        if not is_name(name) or name.lower() in _TAKEN:
            yield path, f"{name[:60]!r} cannot be a user's name: up to 64 of A-Z a-z 0-9 . _ -, and not {_taken()}"
        elif owners.setdefault(name.lower(), name) != name:
            yield path, f"{name!r} and {owners[name.lower()]!r} differ in capitals alone, which some disks do not see"
        if not isinstance(table, dict):
            yield path, "this should be a table"
            continue
        yield from _token_problems(path, table, owners)
        yield from _table_problems(path, {k: v for k, v in table.items() if k != "token_sha256"}, defaults)


def _taken() -> str:
    return ", ".join(sorted(_TAKEN))


def _place_problems(values: Mapping[str, Any]) -> _Found:
    root, resolver = values.get("root", ""), values.get("resolver", "")
    if bool(root) == bool(resolver):
        yield ("resolver",), "say where projects are: either root, a folder, or resolver, a function"
    elif root and not (isinstance(root, str) and root.startswith("/") and "\0" not in root):
        yield ("root",), 'root should be an absolute folder, such as "/srv/mendgraph"'
    elif resolver and not (isinstance(resolver, str) and _FUNCTION.fullmatch(resolver)):
        yield ("resolver",), 'resolver should name a function, as in "company.folders:find"'


def _token_problems(path: tuple[str, ...], table: Mapping[str, Any], owners: dict[str, str]) -> _Found:
    hashes = table.get("token_sha256")
    where = (*path, "token_sha256")
    if not isinstance(hashes, list) or not all(isinstance(each, str) and _HASH.fullmatch(each) for each in hashes):
        yield (
            where,
            "token_sha256 should be a list of hashes, as `mendgraph serve --new-token` prints them; [] lets nobody in",
        )
        return
    for each in hashes:
        if owners.setdefault(each, path[-1]) != path[-1]:
            yield where, f"this token is {owners[each]!r}'s already: each user needs one of their own"


def _table_problems(path: tuple[str, ...], table: Mapping[str, Any], defaults: Mapping[str, Any]) -> _Found:
    known = [*sorted(AgentContext.model_fields.keys() - _ELSEWHERE.keys()), *_OURS]
    usable = {key: value for key, value in defaults.items() if key in known}
    for key, value in table.items():
        if key in known:
            usable[key] = value
            continue
        said = _ELSEWHERE.get(key)
        meant = closest_names(key, known, 2)
        hint = f": did you mean {' or '.join(meant)}?" if meant else ""
        yield (*path, key), f"{key} cannot be set here: {said}" if said else f"there is no setting {key[:60]!r}{hint}"
    runs, models = usable.pop("runs_at_once", RUNS_AT_ONCE), usable.pop("models", [])
    if not isinstance(runs, int) or isinstance(runs, bool) or not 1 <= runs <= MOST_RUNS_AT_ONCE:
        yield (*path, "runs_at_once"), f"runs_at_once should be a whole number from 1 to {MOST_RUNS_AT_ONCE:,}"
    if not isinstance(models, list) or not all(isinstance(each, str) and each for each in models):
        yield (*path, "models"), 'models should be a list of names, such as ["qwen3-coder"]'
    elif models and usable.get("model", models[0]) not in models:
        yield (*path, "model"), f"model should be one of models, which are {', '.join(models)[:200]}"
    for inner, message in _field_problems(usable):
        if not inner or inner[0] in table:  # what the defaults have is told there
            yield (*path, *inner), message


def _field_problems(values: Mapping[str, Any]) -> _Found:
    try:
        AgentContext.model_validate_json(json.dumps(values, default=str), strict=True)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_context=False, include_input=False):
            where = tuple(map(str, each["loc"]))
            yield where, f"{'.'.join(where)}: {each['msg'].removeprefix('Value error, ')}"
