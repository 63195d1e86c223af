"""`mendgraph cassette lint`: what is wrong with a folder's cassettes, each finding with its place and its remedy."""

import ast
import json
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise, takewhile
from typing import Any, Final, NoReturn

from langchain_core.messages import HumanMessage

from mendgraph.graph.cassettes.cassette_file import (
    MOST_BYTES,
    REQUEST_HEADERS,
    RESPONSE_HEADERS,
    CassetteFile,
    decode,
    machine_traces_in,
    parse,
    secrets_in,
)
from mendgraph.graph.cassettes.difference import difference, parsed
from mendgraph.graph.cassettes.naming import SUFFIX, folder_of
from mendgraph.graph.cassettes.player import REPLAY_URL
from mendgraph.graph.cassettes.replayed_run import anything_goes
from mendgraph.graph.configuration.context import AgentContext
from mendgraph.graph.langchain.chat_model import ChatModel
from mendgraph.graph.langchain.chat_models import endpoint_chat
from mendgraph.graph.langchain.failures import Learned, Provider
from mendgraph.nodes.call_model.driver import MODEL_LOOP
from mendgraph.nodes.call_model.endpoint import PLAIN, Endpoint
from mendgraph.nodes.call_model.model import Call
from mendgraph.nodes.call_model.prompts.profiles import offered_tools
from mendgraph.nodes.call_model.prompts.prompt import Prompt, build_prompt
from mendgraph.nodes.execute_tools.files.failures import quoted
from mendgraph.nodes.execute_tools.files.workspace import FileContent, Workspace
from mendgraph.nodes.execute_tools.registry import ActionRegistry
from mendgraph.nodes.execute_tools.secrets.known_secrets import known_values
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.records import EditForm, JsonMap, Profile, Protocol, ToolError, ToolErrorCode, ToolSpec

RECORD_AGAIN: Final = "record it again with `pytest --mendgraph-record`"
MOST_MODULES: Final = 5_000
"""Python files that are searched for the names of cassettes."""

_KNOWN_PATH: Final = "/chat/completions"
"""Where requests go whose drift is known."""
_KEPT_HEADERS: Final = REQUEST_HEADERS | RESPONSE_HEADERS | {"content-encoding"}
_LARGEST_MODULE: Final = 2_000_000
_SHOWN: Final = 3
"""Differences of one cassette that are told; the others follow from the same change."""


@dataclass(frozen=True)
class LintFinding:
    """Something to mend, or a note of what was not looked at. `path` is as the folder was named, `line` from 1."""

    path: str
    line: int
    what: str
    remedy: str
    note: bool = False


def lint_cassettes(folder: str = "cassettes", root: str = ".") -> tuple[LintFinding, ...] | ToolError:
    """All findings, by path and line. `folder` is relative to `root`, in which the tests are looked for.

    NOT_FOUND where there is no such folder.
    """
    place = os.path.join(root, folder)
    if not os.path.isdir(place):
        message = f"There is no folder {quoted(folder)}: name the one that holds the cassettes."
        return ToolError(code=ToolErrorCode.NOT_FOUND, message=message)
    library = anything_goes(os.path.realpath(place))
    specs = ActionRegistry(default_tools()).specs()
    paths = [entry.path for entry in library.walk() if entry.kind == "file" and _is_cassette(entry.path)]
    found = [each for path in paths for each in _findings(library, path, specs)]
    alone = orphans(paths, dict(_modules(anything_goes(os.path.realpath(root)), library.root)))
    found += [LintFinding(path, 1, "no test plays it", "delete it, or name it in a test") for path in alone]
    named = (replace(each, path=os.path.join(folder, each.path)) for each in found)
    return tuple(sorted(named, key=lambda each: (each.path, each.line)))


def _is_cassette(path: str) -> bool:
    """Whether this may be one: the files of a run, which lie in `files/` beside its cassette, are none."""
    folders = path.split("/")[:-1]
    kept = any(pair in {("files", "before"), ("files", "after")} for pair in pairwise(folders))
    return path.endswith(SUFFIX) and not kept


def _findings(library: Workspace, path: str, specs: Sequence[ToolSpec]) -> Iterator[LintFinding]:
    content = library.read_file(path, MOST_BYTES)
    text = content if isinstance(content, ToolError) else decode(content.data, "the file")
    if isinstance(text, ToolError):
        yield _unusable(path, text)
        return
    yield from _must_not_hold(path, text)
    cassette = parse(text, "the file")
    if isinstance(cassette, ToolError):
        yield _unusable(path, cassette)
        return
    yield from _foreign_headers(path, text, cassette)
    first = _first_exchange(text)
    asked = [f"{exchange.method} {exchange.path}" for exchange in cassette.exchanges]
    if asked and not any(each.endswith(_KNOWN_PATH) for each in asked):
        what = f"drift was not looked for: it is known for {_KNOWN_PATH}, and this begins with {asked[0]}"
        yield LintFinding(path, first, what, "its test tells of every request that differs", note=True)
        return
    for each in islice(drift(cassette, specs), _SHOWN):
        yield LintFinding(path, first, f"this version sends something else: {each}", RECORD_AGAIN)


def _unusable(path: str, why: ToolError) -> LintFinding:
    what, _, remedy = why.message.partition(": ")
    return LintFinding(path, 1, what.removeprefix("the file "), remedy or RECORD_AGAIN)


def _must_not_hold(path: str, text: str) -> Iterator[LintFinding]:
    for found in secrets_in(text):
        yield LintFinding(path, found.line, f"holds {found.what}", f"revoke it, and {RECORD_AGAIN}")
    for secret in known_values(os.environ):
        if secret in text:
            line = text.count("\n", 0, text.index(secret)) + 1
            yield LintFinding(path, line, "holds a secret of this environment", f"revoke it, and {RECORD_AGAIN}")
    for found in machine_traces_in(text):
        remedy = "record it in a folder that tests have everywhere, such as `tmp_path`, with relative paths"
        yield LintFinding(path, found.line, f"holds {found.what}", remedy)


def _foreign_headers(path: str, text: str, cassette: CassetteFile) -> Iterator[LintFinding]:
    """Headers that no recording keeps: who wrote them by hand or with another tool may have kept a key."""
    named = {name for exchange in cassette.exchanges for name in (*exchange.request_headers, *exchange.headers)}
    lines = text.lower().split("\n")
    for name in sorted(named - _KEPT_HEADERS):
        line = next((number for number, line in enumerate(lines, start=1) if f"{name}:" in line), 1)
        yield LintFinding(path, line, f"holds the header {name}", f"remove it, or {RECORD_AGAIN}")


def _first_exchange(text: str) -> int:
    """The line in which the first exchange begins, 1 where it is laid out otherwise."""
    lines = enumerate(text.split("\n"), start=1)
    return next((number for number, line in lines if line.startswith(("- request:", "- response:"))), 1)


def _modules(root: Workspace, library: str) -> Iterator[tuple[str, str]]:
    """The Python files that may name a cassette, with their text."""
    found = (entry.path for entry in root.walk() if entry.kind == "file" and _may_test(entry.path))
    beside = (path for path in found if not os.path.join(root.root, path).startswith(f"{library}/"))
    for path in islice(beside, MOST_MODULES):
        content = root.read_file(path, _LARGEST_MODULE)
        if isinstance(content, FileContent):
            yield path, content.data.decode("utf-8", "replace")


def _may_test(path: str) -> bool:
    return path.endswith(".py") and "test" in path


@dataclass(frozen=True)
class _Names:
    """What a module of tests calls by name: its tests, with their classes, and every text that it holds."""

    tests: frozenset[str]
    texts: frozenset[str]


def orphans(cassettes: Sequence[str], modules: Mapping[str, str]) -> list[str]:
    """Those of the cassettes that no test plays, as far as one can see.

    `cassettes` are paths relative to their library, `modules` the sources of tests by their paths from pytest's root.
    A cassette is played by a test of its module (`naming`), or where its name stands in a text: the
    whole of it without its ending, its file's name in its own module, or its folder's name alone, which tests put
    names together with. A module that cannot be read counts as playing all that are its own.
    """
    names = {folder_of(path): _names(source) for path, source in modules.items()}
    texts = frozenset().union(*(each.texts for each in names.values() if each))
    return [path for path in cassettes if not _is_played(path.removesuffix(SUFFIX), names, texts)]


def _is_played(name: str, names: Mapping[str, _Names | None], texts: frozenset[str]) -> bool:
    folder, _, file = name.rpartition("/")
    if name in texts or (folder and folder in texts):
        return True
    if folder not in names:
        return False
    own = names[folder]
    return own is None or any(file == each or file.startswith(f"{each}-") for each in own.tests | own.texts if each)


def _names(source: str) -> _Names | None:
    """What is named there; None where it is no Python."""
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError):
        return None
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    texts = frozenset(value for value in constants if isinstance(value, str))
    return _Names(frozenset(_tests(tree.body, "")), texts)


def _tests(body: Sequence[ast.stmt], inside: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield f"{inside}{node.name}"
        elif isinstance(node, ast.ClassDef):
            yield from _tests(node.body, f"{inside}{node.name}.")


# --- Drift


_KEPT: Final = ("stream", "stream_options", "stop")
"""Parameters that say how mendgraph speaks; others depend on the run's limits."""

_LINE = re.compile(r"^- (\w+)\(\{.*?\}\): (.*)$", re.MULTILINE)
_NOTE = re.compile(r" (Allowed(?: hosts)?: .{0,2000}\.)$")
"""What the description of a tool says of one run's permissions; see `mendgraph.graph.machine.tool_runtime`."""


def drift(cassette: CassetteFile, specs: Sequence[ToolSpec]) -> list[str]:
    """Readable differences between the recorded head and today's; none for requests that are not mendgraph's.

    `specs` are all the tools that this version has.
    """
    request = parsed(cassette.exchanges[0].request) if cassette.exchanges else None
    try:
        return _drift(cassette.settings, request, specs)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError):
        return []  # it is built otherwise than ours are


def _drift(settings: Mapping[str, str], request: Any, specs: Sequence[ToolSpec]) -> list[str]:
    if not _is_ours(request):
        return []
    profile, recorded = _profile(settings, request), _tool_descriptions(request)
    known = {spec.name: spec for spec in specs}
    gone = [f"tools: {name} was recorded, and there is no such tool any more" for name in recorded if name not in known]
    chosen = [
        _as_recorded(known[name], recorded[name], request)
        for name in known
        if name in recorded and not _is_of_one_run(known[name], request)
    ]
    theirs = _head(profile, chosen)
    ours = _recorded_head(request, len(theirs["messages"]), chosen)
    return [*gone, *difference(_encoded(ours), _encoded(theirs))]


def _is_ours(request: JsonMap) -> bool:
    """Whether it begins with the first sentence of an agent for one workspace."""
    first = request["messages"][0]
    return first["role"] == "system" and str(first["content"]).startswith("You are a coding agent. You ")


def _profile(settings: Mapping[str, str], request: JsonMap) -> Profile:
    """How the cassette's run talked; what its settings do not tell is to be seen in the request."""
    tools = _tool_descriptions(request)
    system = str(request["messages"][0]["content"])
    blocks = "fenced block" in system
    form = EditForm.BLOCKS if blocks else EditForm.PATCH if "apply_patch" in tools else EditForm.REPLACE
    protocol = Protocol.NATIVE if "tools" in request else Protocol.TEXT
    chosen: Any = {
        "protocol": settings.get("protocol", protocol.value),
        "edit_form": settings.get("edit_form", form.value),
        "model": settings.get("model", str(request.get("model", ""))),
    }
    context = AgentContext.model_validate(chosen)
    return context.profile(embedded=False, model=context.model or "")


def _tool_descriptions(request: JsonMap) -> dict[str, str]:
    """The tools that the request names, with their descriptions."""
    tools = request.get("tools")
    if isinstance(tools, list):
        functions = [tool["function"] for tool in tools]
        return {str(each.get("name")): str(each.get("description")) for each in functions}
    return dict(_LINE.findall(str(request["messages"][0]["content"])))


def _as_recorded(spec: ToolSpec, description: str, request: JsonMap) -> ToolSpec:
    """The tool of today with what one run alone said of it: its permissions, and the schema of its answer."""
    note = _NOTE.search(description)
    if note and not spec.description.endswith(note[1]):
        spec = spec.model_copy(update={"description": f"{spec.description} {note[1]}"})
    recorded = next((each for each in request.get("tools", ()) if each["function"].get("name") == spec.name), None)
    wanted = recorded and recorded["function"].get("parameters", {})
    if spec.terminal and wanted and "value" in wanted.get("required", []):
        schema = wanted["properties"]["value"]
        (spec,) = offered_tools([spec], EditForm.REPLACE, read_only=False, answer_schema=schema)
    return spec


def _is_of_one_run(spec: ToolSpec, request: JsonMap) -> bool:
    """Whether the schema of a run's answer stands in the line of this tool: that cannot be read back from a text."""
    lines = str(request["messages"][0]["content"]).splitlines()
    return spec.terminal and any(line.startswith(f"- {spec.name}(") and '"value": ' in line for line in lines)


def _head(profile: Profile, specs: Sequence[ToolSpec]) -> JsonMap:
    """What this version would send of the same kind of run."""
    prompts = [_prompt(profile, specs, text) for text in ("One task.", "Another one, which is longer.")]
    pairs = zip(*(prompt.messages for prompt in prompts), strict=False)
    same = [*takewhile(lambda pair: pair[0] == pair[1], pairs)]
    sent = _sent(prompts[0])
    return {**_only(sent), **_tools(sent.get("tools", [])), "messages": sent["messages"][: len(same)]}


def _sent(prompt: Prompt) -> JsonMap:
    """The request that the chat model of an endpoint makes of a prompt; it goes nowhere."""
    heard = _RequestRecorder()
    chat = endpoint_chat(Endpoint(model="m", base_url=REPLAY_URL), PLAIN, verify=False)
    chat.async_client = heard
    model = ChatModel(lambda: chat, Provider("the cassette"), Learned())
    MODEL_LOOP.run(model.acomplete(Call(prompt=prompt, max_output_tokens=1, timeout_s=60.0), lambda _: None))
    return heard.request


class _RequestRecorder:
    """In place of the client that would send a request."""

    def __init__(self) -> None:
        self.request: JsonMap = {}

    async def create(self, **request: Any) -> NoReturn:
        self.request = request
        raise ConnectionError


def _recorded_head(request: JsonMap, length: int, specs: Sequence[ToolSpec]) -> JsonMap:
    """The same of what was recorded: as many messages as today's head has, and the tools that are still there."""
    names = {spec.name for spec in specs}
    tools = [each for each in request.get("tools", ()) if each["function"].get("name") in names]
    messages = [dict(message) for message in request["messages"][:length]]
    if "tools" not in request:
        messages[0]["content"] = _without_lines(str(messages[0]["content"]), names)
    return {**_only(request), **_tools(tools), "messages": messages}


def _without_lines(system: str, names: Collection[str]) -> str:
    lines = system.split("\n")
    return "\n".join(line for line in lines if not (found := _LINE.match(line)) or found[1] in names)


def _prompt(profile: Profile, specs: Sequence[ToolSpec], text: str) -> Prompt:
    return build_prompt(profile, specs, [HumanMessage(text)], (), 0.0)


def _only(said: Mapping[str, Any]) -> JsonMap:
    return {name: said[name] for name in _KEPT if name in said}


def _tools(tools: list[JsonMap]) -> JsonMap:
    return {"tools": tools} if tools else {}


def _encoded(head: JsonMap) -> bytes:
    return json.dumps(head, ensure_ascii=False).encode("utf-8", "surrogatepass")
