"""What the arguments of all tools have in common."""

from typing import Annotated, Final, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from mendgraph.nodes.execute_tools.signature_arguments import PATH_NAMES
from mendgraph.nodes.records import JsonMap

_NAMES = AliasChoices(*PATH_NAMES)
"""Models call it by all three. Source: specs 1 and 4."""


_SELF_EVIDENT: Final = ("minimum", "minLength", "maxLength", "maxItems")
"""Bounds that no model crosses in earnest: they are checked, but not worth their tokens in each prompt."""


def _shorten(schema: JsonMap) -> None:
    """Take from a schema what tells a model nothing: such bounds, and defaults like false, 0 and null."""
    for argument in schema.get("properties", {}).values():
        silent = [*_SELF_EVIDENT, *(["default"] if not argument.get("default") else [])]
        for key in silent:
            argument.pop(key, None)


class ToolArguments(BaseModel):
    """The arguments of one call: frozen, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_shorten)


FilePath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Workspace-relative path under the project root.")
]
FolderPath: TypeAlias = Annotated[
    str, Field(validation_alias=_NAMES, description="Directory under the project root (use `.` for root).")
]
"""Both descriptions are spec 2's, section "Tool Schema Updates"."""
