"""Which tools a turn's model is told of: one way to edit, nothing that the mode denies, and the answer it owes."""

from collections.abc import Iterable

from nodes.records import EditForm, Effect, JsonMap, ToolSpec


def offered_tools(
    specs: Iterable[ToolSpec], edit_form: EditForm, *, read_only: bool, answer_schema: JsonMap | None
) -> list[ToolSpec]:
    """The tools to offer, in order. A call of a tool that is not offered is still judged like any other.

    Where the user gave a schema for the answer's value, the terminal tool shows that schema and requires the value.
    """
    hidden = "edit_blocks" if edit_form is EditForm.REPLACE else "edit_file"
    offered = [spec for spec in specs if spec.name != hidden and not (read_only and spec.effect is Effect.WRITE)]
    if answer_schema is None:
        return offered
    return [_with_value(spec, answer_schema) if spec.terminal else spec for spec in offered]


def owes_a_value(spec: ToolSpec) -> bool:
    """Is this the terminal tool of a run whose answer has to fit a schema?"""
    return spec.terminal and "value" in spec.parameters.get("required", [])


def _with_value(spec: ToolSpec, schema: JsonMap) -> ToolSpec:
    known = spec.parameters
    properties = {**known.get("properties", {}), "value": schema}
    required = [*(name for name in known.get("required", []) if name != "value"), "value"]
    return spec.model_copy(update={"parameters": {**known, "properties": properties, "required": required}})
