"""Which tools a turn's model is told of: one way to edit, nothing that the mode denies, and the answer it owes."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from mendgraph.nodes.records import CHANGING, EditForm, JsonMap, ToolSpec

NO_NOTES: Final[Mapping[str, str]] = MappingProxyType({})


def offered_tools(
    specs: Iterable[ToolSpec],
    edit_form: EditForm,
    *,
    read_only: bool,
    answer_schema: JsonMap | None,
    usable: Collection[str] | None = None,
    few: bool = True,
    notes: Mapping[str, str] = NO_NOTES,
) -> list[ToolSpec]:
    """The tools to offer, in order. A call of a tool that is not offered is still judged like any other.

    A model that is offered several ways to edit takes the one that it masters least, and a small one takes each tool
    that it sees for a hint: with `few`, what is convenient but not worth its tokens in each prompt is left out.
    `usable` are the names that the run may use at all, None means every one. `notes` say of a tool, by its name, what
    holds in this run only. Where the user gave a schema for the answer's value, the terminal tool shows that schema and
    requires the value.
    """
    offered = [
        spec.model_copy(update={"description": f"{spec.description} {notes[spec.name]}"})
        if spec.name in notes
        else spec
        for spec in specs
        if spec.offered
        and (not spec.edit_forms or edit_form in spec.edit_forms)
        and not (few and edit_form in spec.seldom_in)
        and (usable is None or spec.name in usable)
        and not (read_only and spec.effect in CHANGING)
    ]
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
