"""What the commands of a chat answer to a program, as types for the published schema (`output_schema`). Pure."""

from typing import Any, Final, Literal

from typing_extensions import TypedDict

from nodes.records import Plan


class DiffOfFile(TypedDict):
    """What became of a file: a unified diff, or the `problem` for which there is none.

    `changed_since`: somebody else has changed it after the run, which is in the diff as well.
    """

    path: str
    diff: str
    problem: str
    changed_since: bool


class DiffObject(TypedDict):
    """The answer to `/diff`: what the run has changed and nobody has taken back."""

    diff: list[DiffOfFile]


class RestoredFileObject(TypedDict):
    """A file that was restored, and what had become of it."""

    path: str
    kind: Literal["created", "edited", "deleted"]


class LeftFileObject(TypedDict):
    """A file that was left as it is, and why."""

    path: str
    why: str


class RestoredObject(TypedDict):
    """What was taken back; `cut_off` are tools of which nobody knows what they changed."""

    restored: list[RestoredFileObject]
    left: list[LeftFileObject]
    removed_directories: list[str]
    cut_off: list[str]
    steps: list[int]


class UndoObject(TypedDict):
    """The answer to `/undo`."""

    undo: RestoredObject


class PlanObject(TypedDict):
    """The answer to `/plan`."""

    plan: Plan


class ModelWords(TypedDict):
    """A model: null where the endpoint is to name it; `base_url` is "" for the usual one."""

    model: str | None
    base_url: str
    embedded: bool


class ModelObject(TypedDict):
    """The answer to `/model`: which one answers, from the next turn on where it was changed."""

    model: ModelWords


class CommandWords(TypedDict):
    """A command of a chat, how it is written, and what it does."""

    name: str
    usage: str
    help: str


class HelpObject(TypedDict):
    """The answer to `/help`."""

    help: list[CommandWords]


class ExitWords(TypedDict):
    """The thread that can be talked on with."""

    thread_id: str


class ExitObject(TypedDict):
    """The answer to `/exit`: the chat is over."""

    exit: ExitWords


class DiffLine(DiffObject):
    """The answer to `/diff` among JSON lines."""

    event: Literal["diff"]


class UndoLine(UndoObject):
    """The answer to `/undo` among JSON lines."""

    event: Literal["undo"]


class PlanLine(PlanObject):
    """The answer to `/plan` among JSON lines."""

    event: Literal["plan"]


class ModelLine(ModelObject):
    """The answer to `/model` among JSON lines."""

    event: Literal["model"]


class HelpLine(HelpObject):
    """The answer to `/help` among JSON lines."""

    event: Literal["help"]


class ExitLine(ExitObject):
    """The answer to `/exit` among JSON lines."""

    event: Literal["exit"]


COMMAND_OBJECTS: Final[tuple[Any, ...]] = (DiffObject, UndoObject, PlanObject, ModelObject, HelpObject, ExitObject)
COMMAND_LINES: Final[tuple[Any, ...]] = (DiffLine, UndoLine, PlanLine, ModelLine, HelpLine, ExitLine)
