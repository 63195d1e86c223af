"""Adapts tools of LangChain and typed functions as tools of the machine.

LangChain validates the arguments, injects state and runtime by LangGraph's `ToolNode`, and builds the result. Its
callbacks are disabled, as the result may hold secrets: `callbacks` reports the call.
"""

import inspect
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Annotated, Any, Final, get_origin

import orjson
from langchain_core.messages import AIMessage, ToolCall as NativeCall, ToolMessage
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
from mendgraph.nodes.execute_tools.tool_outcome import similar_or_all
from mendgraph.nodes.execute_tools.tool_schemas import shown_schema
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.language.display import described_type, one_line
from mendgraph.nodes.records import Effect, JsonMap, ToolCall, ToolError, ToolErrorCode, ToolResult, invalid

ACCEPTED: Final = "tools of mendgraph, tools of LangChain (@tool, StructuredTool, BaseTool), or typed functions"


def as_tools(tools: Iterable[object], effects: Mapping[str, Effect]) -> tuple[Tool, ...]:
    """Return the machine's tool for each item; a `Tool` is returned unchanged.

    The effect of another one is that of its name in `effects`, else that of its `metadata` under "effect", else
    EXECUTE: it counts as a program. `metadata` may also name the arguments that are paths of the workspace, as
    "path_fields". An action of spec 4 may declare its effect; else its name decides, or it counts as writing.

    Raises:
        TypeError: something is no tool; the message says what is accepted.
        ValueError: a tool cannot be used, or `effects` names none; the message names it and the remedy.
    """
    converted: list[Tool] = []
    foreign: list[str] = []

    for item in tools:
        if isinstance(item, Tool):
            converted.append(item)
        else:
            converted.append(_tool_of(item, effects))
            foreign.append(converted[-1].name)

    for built_in in default_tools():
        if built_in.name in foreign:
            raise ValueError(f"tools: {built_in.name!r} is the name of a built-in tool: rename yours.")

    for name in effects.keys() - foreign:
        if any(tool.name == name for tool in converted):
            raise ValueError(f"effects: the tool {name!r} says its effect itself, in @tool(effect=...): leave it out.")
        raise ValueError(f"effects: there is no tool {name!r}. {similar_or_all(name, foreign)[1]}")

    return tuple(converted)


def _tool_of(item: object, effects: Mapping[str, Effect]) -> Tool:
    if isinstance(item, BaseTool):
        return _adapted(item, effects)

    if is_action(item):
        action = tool_of(item)
        return replace(action, effect=_effect(action.name, effects, {"effect": action.effect}))

    if not inspect.isroutine(item):
        raise TypeError(f"tools: {described_type(item)} is not accepted: use {ACCEPTED}.")

    name = item.__name__
    try:
        if ToolContext in inspect.get_annotations(item, eval_str=True).values():
            return tool(item, effect=_effect(name, effects, {}))

        adapted = langchain_tool(item)
    except Exception as error:
        raise TypeError(f"tools: the function {name!r} cannot be made a tool: {error}") from error

    return _adapted(adapted, effects)


def _effect(name: str, effects: Mapping[str, Effect], metadata: Mapping[str, Any]) -> Effect:
    effect = effects.get(name, metadata.get("effect", Effect.EXECUTE))
    try:
        return Effect(effect)
    except ValueError:
        effect_names = ", ".join(f"Effect.{member.name}" for member in Effect)
        raise ValueError(
            f"tools: the effect {effect!r} of {name!r} is unknown; the effects are {effect_names}."
        ) from None


def _adapted(foreign: BaseTool, effects: Mapping[str, Effect]) -> Tool:
    name = foreign.name
    metadata = foreign.metadata or {}

    _check_name_and_end(foreign)
    effect = _effect(name, effects, metadata)

    try:
        foreign = _with_plain_runtime(foreign)
        arguments, schema = _arguments(foreign)
        node = ToolNode([foreign])
    except Exception as error:  # noqa: BLE001 - a schema of the user's own may fail in any way
        return unavailable_tool(
            name, f"The tool {name!r} has a schema that cannot be used: {one_line(str(error), 500)}"
        )

    paths = tuple(metadata.get("path_fields", ()))
    for path in paths:
        if path not in schema["properties"]:
            raise ValueError(f"tools: {name!r} has no argument {path!r}, which its path_fields name.")

    def run(context: ToolContext, values: BaseModel) -> ToolAnswer:
        try:
            with tracing_context(enabled=False):
                return _answer(name, foreign.invoke(*_call(foreign, node, context, values)))
        except (ToolException, ValidationError, GraphBubbleUp) as error:
            return _failure(foreign, arguments, error)

    async def arun(context: ToolContext, values: BaseModel) -> ToolAnswer:
        try:
            with tracing_context(enabled=False):
                return _answer(name, await foreign.ainvoke(*_call(foreign, node, context, values)))
        except (ToolException, ValidationError, GraphBubbleUp) as error:
            return _failure(foreign, arguments, error)

    # LangChain would call a sync tool in another thread, which cannot be abandoned.
    if isinstance(foreign, StructuredTool | SimpleTool):
        has_async = foreign.coroutine is not None
        has_sync = foreign.func is not None
    else:
        has_async = type(foreign)._arun is not BaseTool._arun  # noqa: SLF001 - a tool without one runs its sync form
        has_sync = True

    async_run = None
    if has_async:
        async_run = arun

    return Tool(
        name=name,
        description=" ".join(foreign.description.split()),
        arguments=arguments,
        effect=effect,
        run=run if has_sync else arun,
        arun=async_run,
        path_fields=paths,
        cacheable=effect is Effect.READ,
        schema=schema,
    )


def _check_name_and_end(foreign: BaseTool) -> None:
    name = foreign.name
    if foreign.return_direct:
        raise ValueError(
            f"tools: {name!r} has return_direct=True, and only the model's answer ends a turn here: leave it out. The"
            " model then answers with the result."
        )

    if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
        raise ValueError(f"tools: {name!r} is not a valid name of a tool: use letters, digits, _ and -, at most 64.")


def _with_plain_runtime(foreign: BaseTool) -> BaseTool:
    """Return the tool, which gets its runtime unchanged: LangChain would serialize it with the history, and warn."""
    schema: Any = foreign.args_schema
    if not (isinstance(schema, type) and issubclass(schema, BaseModel)):
        return foreign

    fields: Any = {}
    for name, field in schema.model_fields.items():
        kind: Any = field.annotation
        if (get_origin(kind) or kind) is ToolRuntime:
            fields[name] = (Annotated[kind, InjectedToolArg, PlainSerializer(lambda value: value)], field)

    if not fields:
        return foreign

    return foreign.model_copy(update={"args_schema": create_model(foreign.name, __base__=schema, **fields)})


def _arguments(foreign: BaseTool) -> tuple[type[BaseModel], JsonMap]:
    """Return the pydantic model and the JSON schema of the arguments; LangChain checks other arguments itself."""
    call_model: Any = foreign.tool_call_schema
    takes_text = isinstance(foreign, SimpleTool) and foreign.args_schema is None  # under a name of LangChain's

    if takes_text or not (isinstance(call_model, type) and issubclass(call_model, BaseModel)):
        schema: Any = foreign.args_schema
        if not isinstance(schema, dict):
            schema = convert_to_openai_function(foreign).get("parameters", {})

        return OpenArguments, shown_schema(schema)

    input_model: Any = foreign.get_input_schema()
    injects_nothing = input_model.model_fields.keys() == call_model.model_fields.keys()
    fields: Any = {}

    for name, field in input_model.model_fields.items():
        if name not in call_model.model_fields:
            continue

        if field.default is None:  # `x: int = None` means it
            fields[name] = (field.annotation | None, field)
        elif not injects_nothing:
            fields[name] = (field.annotation, field)

    base = None
    if injects_nothing:  # it keeps the validators of its base
        base = input_model

    model = create_model(foreign.name, __base__=base, **fields)
    return model, argument_schema(model)


def _call(
    foreign: BaseTool, node: ToolNode, context: ToolContext, values: BaseModel
) -> tuple[dict[str, Any], RunnableConfig]:
    """Return the call of the tool with the injected arguments, none of which come from the model."""
    config: RunnableConfig = {**ensure_config(), "callbacks": UNHEARD}
    runtime = get_runtime()
    state = dict(context.state)

    reply = state.get("reply")
    if reply:
        items = [item for item in state["items"] if isinstance(item, ToolCall)]
        calls = [NativeCall(name=item.tool, args=item.arguments, id=item.call_id) for item in items]
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
    call: Any = {"name": foreign.name, "args": content, "id": context.call_id, "type": "tool_call"}

    try:  # the node itself would wait for a tool that was abandoned
        return {**node._inject_tool_args(call, tool_runtime, foreign)}, config  # noqa: SLF001
    except KeyError as error:
        raise ToolException(f"it asks for {error} of the state, which has {', '.join(sorted(state))}") from error


def _answer(name: str, message: Any) -> ToolAnswer:
    if not isinstance(message, ToolMessage):
        return invalid(
            f"The tool {name} returned a {type(message).__name__}, which does not steer this machine: have it return"
            " what the model is to know, and keep in LangGraph's store what is to last."
        )

    if message.status == "error":
        return ToolError(code=ToolErrorCode.IO_ERROR, message=message.text or f"{name} failed.")

    blocks: list[Any] = []
    if not isinstance(message.content, str):
        for block in message.content:
            if isinstance(block, str):
                blocks.append({"type": "text", "text": block})
            else:
                blocks.append(block)

    plain = tuple(orjson.loads(orjson.dumps(blocks)))  # TypeError: no checkpoint can hold a block
    result = ToolResult(ok=True, data={"text": message.text})
    return ToolOutput(result, blocks=plain, artifact=_as_json(message.artifact))


def _failure(foreign: BaseTool, arguments: type[BaseModel], error: Exception) -> ToolError:
    name = foreign.name

    if (
        isinstance(error, ValidationError) and error.title == foreign.get_input_schema().__name__
    ):  # and not of another model
        return invalid(
            f"The arguments of {name} do not fit: {'; '.join(describe_errors(error, [*arguments.model_fields]))}."
        )

    if isinstance(error, GraphBubbleUp):
        return invalid(f"{name} called interrupt(), which no tool can here: mode ask has a person approve its calls.")

    return ToolError(code=ToolErrorCode.IO_ERROR, message=f"{name} failed: {error}")


def _as_json(artifact: Any) -> Any:
    """Return the artifact as JSON values, or its `repr` if it has no JSON form."""
    try:
        return orjson.loads(orjson.dumps(json_like(artifact, other=in_words)))
    except TypeError:
        return repr(artifact)
