"""Which tools a turn's model is told of: one way to edit, nothing that the mode denies, and the answer it owes."""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from nodes.records import CHANGING, EditForm, JsonMap, ToolSpec

_EDITING: Final = {
    EditForm.REPLACE: frozenset({"edit_file", "multi_edit", "write_file", "append_file", "move_file", "delete_file"}),
    EditForm.BLOCKS: frozenset({"edit_blocks", "write_file", "append_file", "move_file", "delete_file"}),
    EditForm.PATCH: frozenset({"apply_patch", "write_file"}),
}
"""The ways to change files, by form: a model that is offered several takes the one that it masters least."""

_SELDOM: Final = {
    EditForm.REPLACE: frozenset({"multi_edit", "append_file"}),
    EditForm.BLOCKS: frozenset({"append_file", "move_file", "delete_file"}),
    EditForm.PATCH: frozenset[str](),
}
"""Convenient, but not worth their tokens in each prompt; a small model takes each tool that it sees for a hint."""


_UNOFFERED: Final = frozenset({"run_checks"})
"""The machine's own: checks run when there is something to check, not when a model thinks of them."""

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

    `usable` are the names that the run may use at all, None means every one. `notes` say of a tool, by its name, what
    holds in this run only. Where the user gave a schema for the
    answer's value, the terminal tool shows that schema and requires the value.
    """
    hidden = frozenset().union(*_EDITING.values()) - _EDITING[edit_form] | (_SELDOM[edit_form] if few else frozenset())
    offered = [
        spec
        for spec in specs
        if spec.name not in hidden | _UNOFFERED
        and (usable is None or spec.name in usable)
        and not (read_only and spec.effect in CHANGING)
    ]
    offered = [_with_note(spec, notes.get(spec.name, "")) for spec in offered]
    if answer_schema is None:
        return offered
    return [_with_value(spec, answer_schema) if spec.terminal else spec for spec in offered]


def owes_a_value(spec: ToolSpec) -> bool:
    """Is this the terminal tool of a run whose answer has to fit a schema?"""
    return spec.terminal and "value" in spec.parameters.get("required", [])


def _with_note(spec: ToolSpec, note: str) -> ToolSpec:
    return spec.model_copy(update={"description": f"{spec.description} {note}"}) if note else spec


def _with_value(spec: ToolSpec, schema: JsonMap) -> ToolSpec:
    known = spec.parameters
    properties = {**known.get("properties", {}), "value": schema}
    required = [*(name for name in known.get("required", []) if name != "value"), "value"]
    return spec.model_copy(update={"parameters": {**known, "properties": properties, "required": required}})
