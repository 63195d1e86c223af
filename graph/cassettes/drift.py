"""Whether this version would still send what a cassette has recorded: the head of its first request.

The head is what the prompt begins with, the tools and the stop words: all that does not depend on the task. Which tools
a run is offered depends on its mode, role and permissions, which no cassette tells; so those that were recorded are
compared with what they are now, and all of them together with what some mode and role would offer. Today's request is
the one that the chat model of an endpoint makes; nothing is sent.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import product, takewhile
from typing import Any, Final, NoReturn

from langchain_core.messages import HumanMessage

from graph.cassettes.cassette_file import CassetteFile
from graph.cassettes.difference import difference, parsed
from graph.cassettes.tape import REPLAY_URL
from graph.context import AgentContext
from graph.langchain.chat_model import ChatModel
from graph.langchain.chat_models import endpoint_chat
from graph.langchain.failures import Provider
from graph.langchain.learned import Learned
from nodes.call_model.endpoint import Endpoint
from nodes.call_model.endpoint import PLAIN
from nodes.call_model.model import Call
from nodes.call_model.model_loop import MODEL_LOOP
from nodes.call_model.offered_tools import offered_tools
from nodes.call_model.prompt import Prompt, build_prompt
from nodes.execute_tools.policy.roles import BUILT_IN_ROLES
from nodes.records import EditForm, JsonMap, Profile, Protocol, ToolSpec

_KEPT: Final = ("stream", "stream_options", "stop")
"""Parameters that say how mendgraph speaks; others depend on the run's limits."""

_LINE = re.compile(r"^- (\w+)\(\{.*?\}\): (.*)$", re.MULTILINE)
_NOTE = re.compile(r" (Allowed(?: hosts)?: .{0,2000}\.)$")
"""What the description of a tool says of one run's permissions; see `graph.tool_runtime.ToolRuntime`."""


def drift(cassette: CassetteFile, specs: Sequence[ToolSpec]) -> list[str]:
    """Readable differences between the recorded head and today's; none for requests that are not mendgraph's.

    `specs` are all the tools that this version has.
    """
    request = parsed(cassette.exchanges[0].request) if cassette.exchanges else None
    if not isinstance(request, dict) or not _is_ours(request):
        return []
    profile = _profile(cassette.settings, request)
    recorded = _told(request)
    known = {spec.name: spec for spec in specs}
    gone = [f"tools: {name} was recorded, and there is no such tool any more" for name in recorded if name not in known]
    chosen = [
        _as_recorded(known[name], recorded[name], request)
        for name in known
        if name in recorded and not _is_of_one_run(known[name], request)
    ]
    theirs = _head(profile, chosen)
    ours = _recorded_head(request, len(theirs["messages"]), chosen)
    lines = difference(_encoded(ours), _encoded(theirs))
    return [*gone, *lines, *_missing(set(recorded) & set(known), profile, specs)]


def _is_ours(request: JsonMap) -> bool:
    """Whether it is built as ours are, and begins with the first sentence of an agent for one workspace."""
    messages = request.get("messages")
    if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
        return False
    tools = request.get("tools", [])
    if not isinstance(tools, list) or not all(map(_is_tool, tools)):
        return False
    text = messages[0].get("content") if messages[0].get("role") == "system" else None
    return isinstance(text, str) and text.startswith("You are a coding agent. You ")


def _is_tool(value: Any) -> bool:
    """Whether it is a function with a schema of named parameters, all of which it has."""
    function = value.get("function") if isinstance(value, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        return False
    schema = function.get("parameters", {})
    if not isinstance(schema, dict):
        return False
    properties, required = schema.get("properties", {}), schema.get("required", [])
    return (
        isinstance(properties, dict)
        and isinstance(required, list)
        and all(isinstance(properties.get(str(name)), dict) for name in required)
    )


def _profile(settings: Mapping[str, str], request: JsonMap) -> Profile:
    """How the cassette's run talked; what its settings do not tell is to be seen in the request."""
    tools = _told(request)
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


def _told(request: JsonMap) -> dict[str, str]:
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
    heard = _Heard()
    chat = endpoint_chat(Endpoint(model="m", base_url=REPLAY_URL), PLAIN, verify=False)
    chat.async_client = heard
    model = ChatModel(lambda: chat, Provider("the cassette"), Learned())
    MODEL_LOOP.run(model.acomplete(Call(prompt=prompt, max_output_tokens=1, timeout_s=60.0), lambda _: None))
    return heard.request


class _Heard:
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


# --- The tools together


def _missing(names: set[str], profile: Profile, specs: Sequence[ToolSpec]) -> list[str]:
    """The tools that a run of today would be offered beside these, whatever its mode and role; none where some fits."""
    if not names or profile.edit_form is EditForm.BLOCKS:
        return []  # which does not tell small models of its tools
    sets = [{spec.name for spec in offered} for offered in _offered(profile, specs)]
    if names in sets:
        return []
    nearest = min(sets, key=lambda offered: (len(offered ^ names), sorted(offered)))
    return [
        *(f"tools: {name} is sent and was not recorded" for name in sorted(nearest - names)),
        *(f"tools: {name} was recorded and is not sent" for name in sorted(names - nearest)),
    ]


def _offered(profile: Profile, specs: Sequence[ToolSpec]) -> Iterator[list[ToolSpec]]:
    roles = BUILT_IN_ROLES.values()
    without = [set[str](), {"run_command"}, {"http_get"}, {"run_command", "http_get"}]
    for read_only, few, role, lacks in product((False, True), (True, False), roles, without):
        usable = {spec.name for spec in specs if role(spec) or spec.terminal} - lacks
        yield offered_tools(specs, profile.edit_form, read_only=read_only, answer_schema=None, usable=usable, few=few)
