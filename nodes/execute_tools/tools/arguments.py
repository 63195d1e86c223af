"""What the arguments of all tools have in common."""

from typing import Annotated, TypeAlias

from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from nodes.execute_tools.signature_arguments import PATH_NAMES

_NAMES = AliasChoices(*PATH_NAMES)
"""Models call it by all three. Source: specs 1 and 4."""


class ToolArguments(BaseModel):
    """The arguments of one call: frozen, and closed to unknown names."""

    model_config = ConfigDict(frozen=True, extra="forbid")


FilePath: TypeAlias = Annotated[str, Field(validation_alias=_NAMES, description="Workspace-relative path.")]
FolderPath: TypeAlias = Annotated[str, Field(validation_alias=_NAMES, description='Directory; "." is the workspace.')]
