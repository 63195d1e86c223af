"""A tool of LangChain's, or a typed function, as a tool of the machine, where all calls take one way.

LangChain reads the arguments, injects what the tool asks for (LangGraph's `ToolNode` knows what that is), and makes the
result. Its own callbacks are silenced, as nothing has taken secrets out by then: `callbacks` tells of the call.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, get_origin

import orjson
from langchain_core.messages import AIMessage, ToolMessage
from langchain_core.runnables.config import RunnableConfig, ensure_config
from langchain_core.tools import BaseTool, InjectedToolArg, StructuredTool, ToolException, tool as langchain_tool
from langchain_core.tools.simple import Tool as SimpleTool
from langchain_core.utils.function_calling import convert_to_openai_function
from langgraph.errors import GraphBubbleUp
from langgraph.prebuilt import ToolNode, ToolRuntime
from langgraph.runtime import get_runtime
from langsmith import tracing_context
from pydantic import BaseModel, PlainSerializer, ValidationError, create_model

from mendgraph.graph.langchain.callbacks import UNHEARD
from mendgraph.nodes.execute_tools.plain_values import in_words, json_like
from mendgraph.nodes.execute_tools.registry import (
    OpenArguments,
    Tool,
    ToolAnswer,
    ToolContext,
    ToolOutput,
    argument_schema,
    describe_errors,
    is_action,
    tool,
    tool_of,
    unavailable_tool,
)
from mendgraph.nodes.execute_tools.tool_run import meant_or_known
from mendgraph.nodes.execute_tools.tool_schemas import shown_schema
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.language.display import one_line
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolResult, invalid

ACCEPTED: Final = "tools of mendgraph, tools of LangChain (@tool, StructuredTool, BaseTool), or typed functions"


def as_tools(given: Iterable[object], effects: Mapping[str, Effect]) -> tuple[Tool, ...]:
    """The machine's tool for each of these. One of ours is taken as it is.

    The effect of another is what `effects` says of its name, else what its `metadata` has as "effect", else EXECUTE: it
    counts as a program. `metadata` may also name the arguments that are paths of the workspace, as "path_fields". An
    action of spec 4 may declare its effect; else its name says it, or it counts as writing.

    Raises:
        TypeError: something is no tool; the message says what is accepted.
        ValueError: a tool cannot be used, or `effects` names none; the message names it and the remedy.
    """
    given = tuple(given)
    tools = tuple(each if isinstance(each, Tool) else _tool_of(each, effects) for each in given)
    foreign = [made.name for made, original in zip(tools, given, strict=True) if made is not original]

    if clash := next((each.name for each in default_tools() if each.name in foreign), ""):
        raise ValueError(f"tools: {clash!r} is the name of a built-in tool: give yours another name.")

    for name in effects.keys() - foreign:
        if any(each.name == name for each in tools):
            raise ValueError(f"effects: the tool {name!r} says its effect itself, in @tool(effect=...): leave it out.")
        raise ValueError(f"effects: there is no tool {name!r}. {meant_or_known(name, foreign)[1]}")

    return tools


def _tool_of(given: object, effects: Mapping[str, Effect]) -> Tool:
    if isinstance(given, BaseTool):
        return _adapted(given, effects)

    if is_action(given):
        action = tool_of(given)
        return replace(action, effect=_effect(action.name, effects, {"effect": action.effect}))

    if not inspect.isroutine(given):
        if isinstance(given, type):
            kind = f"the class {given.__name__}"
        else:
            kind = f"a {type(given).__name__}"

        raise TypeError(f"tools: {kind} does not fit: give {ACCEPTED}.")

    name = given.__name__
    try:
        if ToolContext in inspect.get_annotations(given, eval_str=True).values():
            return tool(given, effect=_effect(name, effects, {}))

        found = langchain_tool(given)
    except Exception as error:
        raise TypeError(f"tools: the function {name!r} cannot be made a tool: {error}") from error

    return _adapted(found, effects)


def _effect(name: str, effects: Mapping[str, Effect], metadata: Mapping[str, Any]) -> Effect:
    effect = effects.get(name, metadata.get("effect", Effect.EXECUTE))
    try:
        return Effect(effect)
    except ValueError:
        effect_names = ", ".join(f"Effect.{each.name}" for each in Effect)
        raise ValueError(
            f"tools: the effect of {name!r} is {effect!r}, which there is not; there are {effect_names}."
        ) from None


def _adapted(given: BaseTool, effects: Mapping[str, Effect]) -> Tool:
    name = given.name
    metadata = given.metadata or {}

    if given.return_direct:
        raise ValueError(
            f"tools: {name!r} has return_direct=True, and only the model's answer ends a turn here: leave it out. The"
            " model then answers with the result."
        )

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(f"tools: {name!r} is no name that models take: use letters, digits, _ and -, at most 64.")

    effect = _effect(name, effects, metadata)

    try:
        given = _undumped(given)
        arguments, schema = _arguments(given)
        node = ToolNode([given])
    except Exception as error:  # noqa: BLE001 - a schema of the user's own may fail in any way
        return unavailable_tool(
            name, f"The tool {name!r} has a schema that cannot be used: {one_line(str(error), 500)}"
        )

    paths = tuple(metadata.get("path_fields", ()))
    if unknown := [path for path in paths if path not in schema["properties"]]:
        raise ValueError(f"tools: {name!r} has no argument {unknown[0]!r}, which its path_fields name.")

    def run(context: ToolContext, values: BaseModel) -> ToolAnswer:
        try:
            with tracing_context(enabled=False):
                return _answer(name, given.invoke(*_call(given, node, context, values)))
        except (ToolException, ValidationError, GraphBubbleUp) as error:
            return _failure(given, arguments, error)

    async def arun(context: ToolContext, values: BaseModel) -> ToolAnswer:
        try:
            with tracing_context(enabled=False):
                return _answer(name, await given.ainvoke(*_call(given, node, context, values)))
        except (ToolException, ValidationError, GraphBubbleUp) as error:
            return _failure(given, arguments, error)

    # LangChain would call what is not async in a thread of its own, which nobody can give up.
    if isinstance(given, StructuredTool | SimpleTool):
        in_loop = given.coroutine is not None
        has_sync = given.func is not None
    else:
        in_loop = type(given)._arun is not BaseTool._arun  # noqa: SLF001 - a tool without one runs its sync form
        has_sync = True
    return Tool(
        name=name,
        description=" ".join(given.description.split()),
        arguments=arguments,
        effect=effect,
        run=run if has_sync else arun,
        arun=arun if in_loop else None,
        path_fields=paths,
        cacheable=effect is Effect.READ,
        schema=schema,
    )


def _undumped(given: BaseTool) -> BaseTool:
    """The tool, its runtime handed on as it is: LangChain would dump it, history and all, and warn of a context."""
    schema: Any = given.args_schema
    if isinstance(schema, type) and issubclass(schema, BaseModel):
        fields = schema.model_fields
    else:
        fields = {}

    runtime: Any = {
        field: (Annotated[about.annotation, InjectedToolArg, PlainSerializer(lambda told: told)], about)
        for field, about in fields.items()
        if (get_origin(about.annotation) or about.annotation) is ToolRuntime
    }
    model = runtime and create_model(given.name, __base__=schema, **runtime)

    if model:
        return given.model_copy(update={"args_schema": model})

    return given


def _arguments(given: BaseTool) -> tuple[type[BaseModel], JsonMap]:
    """The model of what a model may say, and the schema that it is shown; LangChain checks what is no such model."""
    shown: Any = given.tool_call_schema
    plain = isinstance(given, SimpleTool) and given.args_schema is None  # one text, under a name of LangChain's

    if plain or not (isinstance(shown, type) and issubclass(shown, BaseModel)):
        raw = given.args_schema
        if isinstance(raw, dict):
            schema = raw
        else:
            schema = convert_to_openai_function(given).get("parameters", {})

        return OpenArguments, shown_schema(schema)

    whole: Any = given.get_input_schema()
    has_no_validators = (
        whole.model_fields.keys() == shown.model_fields.keys()
    )  # the model that is shown has no validators
    fields: Any = {
        # `x: int = None` means it.
        field: (about.annotation if about.default is not None else about.annotation | None, about)
        for field, about in whole.model_fields.items()
        if field in shown.model_fields and (not has_no_validators or about.default is None)
    }
    model = create_model(given.name, __base__=whole if has_no_validators else None, **fields)

    return model, argument_schema(model)


def _call(
    given: BaseTool, node: ToolNode, context: ToolContext, values: BaseModel
) -> tuple[dict[str, Any], RunnableConfig]:
    """The call with what is injected: nothing of that is taken from the model."""
    config: RunnableConfig = {**ensure_config(), "callbacks": UNHEARD}
    runtime = get_runtime()
    state = dict(context.state)

    if reply := state.get("reply"):
        calls: Any = [
            {"name": item.tool, "args": item.arguments, "id": item.call_id, "type": "tool_call"}
            for item in state["items"]
            if isinstance(item, ToolCall)
        ]
        state["messages"] = [*state["messages"], AIMessage(reply.text, tool_calls=calls)]

    tool_runtime: Any = ToolRuntime(
        state=state,
        context=state.get("context"),
        config=config,
        stream_writer=runtime.stream_writer,
        tool_call_id=context.call_id,
        store=runtime.store,
        execution_info=runtime.execution_info,
        server_info=runtime.server_info,
    )
    content = values.model_dump(mode="json", exclude_defaults=True)
    call: Any = {"name": given.name, "args": content, "id": context.call_id, "type": "tool_call"}

    try:  # the node itself would wait for a tool that was given up
        return {**node._inject_tool_args(call, tool_runtime, given)}, config  # noqa: SLF001
    except KeyError as error:
        raise ToolException(f"it asks for {error} of the state, which has {', '.join(sorted(state))}") from error


def _answer(name: str, made: Any) -> ToolAnswer:
    if not isinstance(made, ToolMessage):
        return invalid(
            f"The tool {name} returned a {type(made).__name__}, which does not steer this machine: have it return what"
            " the model is to know, and keep in LangGraph's store what is to last."
        )

    if made.status == "error":
        return ToolError(code=ToolErrorCode.IO_ERROR, message=made.text or f"{name} failed.")

    content = made.content
    if isinstance(content, str):
        blocks = []
    else:
        blocks = [{"type": "text", "text": e} if isinstance(e, str) else e for e in content]

    plain = tuple(orjson.loads(orjson.dumps(blocks)))  # TypeError: a block holds what no checkpoint can
    return ToolOutput(ToolResult(ok=True, data={"text": made.text}), blocks=plain, artifact=_as_json(made.artifact))


def _failure(given: BaseTool, arguments: type[BaseModel], error: Exception) -> ToolError:
    name = given.name

    if isinstance(error, ValidationError) and error.title == given.get_input_schema().__name__:  # no other model's
        return invalid(
            f"The arguments of {name} do not fit: {'; '.join(describe_errors(error, [*arguments.model_fields]))}."
        )

    if isinstance(error, GraphBubbleUp):
        return invalid(f"{name} called interrupt(), which no tool can here: mode ask has a person approve its calls.")

    return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{name} failed: {error}")


def _as_json(artifact: Any) -> Any:
    """The artifact as a checkpoint and the journal can hold it; what has no JSON form is its `repr`."""
    try:
        return orjson.loads(orjson.dumps(json_like(artifact, other=in_words)))
    except TypeError:
        return repr(artifact)
