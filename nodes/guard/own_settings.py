"""The settings of this very program in a workspace: an agent that could change them could allow itself more. Pure."""

from pathlib import Path
from typing import Final

from nodes.guard.file_rules import FileGuardrailRule
from nodes.guard.paths import folded_parts

NAME: Final = ".mendgraph.toml"


def is_own_settings(path: Path) -> bool:
    """Is this a `.mendgraph.toml`, in any folder: each can be the workspace of a later run?"""
    return folded_parts(path)[-1:] == (NAME,)


OWN_SETTINGS_RULE: Final = FileGuardrailRule("own_settings", "Settings of the agent itself", is_own_settings)
"""Holds for every run beside its other rules, and for changes alone: what the file says is no secret."""
