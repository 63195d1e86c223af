"""The interface to `nodes/small_model/`, which no other module imports: small models and the block form."""

from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TYPE_CHECKING

from langchain_core.messages import AnyMessage

from mendgraph.nodes.language.history import is_request, is_typed, last_request
from mendgraph.nodes.language.read_ahead import MAX_BYTES, MAX_SMALL_BYTES, Files, all_named_files, read_named_files
from mendgraph.nodes.records import EditForm, ExtractionError, Mark, ModelReply, Profile

if TYPE_CHECKING:
    from mendgraph.nodes.small_model.block_form import BlockForm
    from mendgraph.nodes.small_model.request_checks import RequestChecks

Preload = Callable[[str, Files, Sequence[str]], ModelReply | None]
"""(request, files, files of the last turn) -> a reply that reads files before the model is called."""


def is_in_blocks(profile: Profile) -> bool:
    """Return whether the model is asked for edits as fenced blocks."""
    return profile.edit_form is EditForm.BLOCKS


def block_form(profile: Profile) -> "BlockForm | None":
    """Return the block form of a turn; None in other forms."""
    if not is_in_blocks(profile):
        return None

    from mendgraph.nodes.small_model.block_form import BlockForm

    return BlockForm(profile)


def fallback_form(profile: Profile) -> EditForm | None:
    """Return the form to switch to if edits by old and new text keep missing; None to keep the form."""
    if profile.steps_down and profile.edit_form is EditForm.REPLACE:
        return EditForm.BLOCKS

    return None


def preload_of(profile: Profile, *, checked: bool) -> Preload:
    """Return how files are read before the model is called; `checked`: there is a tool for checks."""
    most_bytes = MAX_SMALL_BYTES if profile.small else MAX_BYTES

    def preload_named(request: str, files: Files, _: Sequence[str]) -> ModelReply | None:
        return read_named_files(request, files, most_bytes)

    def preload_meant(request: str, files: Files, last_files: Sequence[str]) -> ModelReply | None:
        from mendgraph.nodes.small_model.preload import preload

        return preload(request, files, most_bytes=most_bytes, checked=checked, before=last_files)

    return preload_meant if is_in_blocks(profile) else preload_named


def unread_files(messages: Sequence[AnyMessage], files: Files) -> list[Mark]:
    """Return marks of the files that the request names and that a model in block form was not shown completely."""
    from mendgraph.nodes.small_model.turn_view import view_turn

    view = view_turn(messages)
    marks: list[Mark] = []
    for path in all_named_files(last_request(messages), files):
        if path in view.parts:
            marks.append(Mark(kind="unread", path=path, detail=f"except {view.parts[path]}"))
        elif path not in view.files and path not in view.changed:
            marks.append(Mark(kind="unread", path=path))

    return marks


def example_lines(profile: Profile, messages: Sequence[AnyMessage]) -> frozenset[str]:
    """Return the lines of the prompt's examples that an edit of this turn may not contain."""
    if not is_in_blocks(profile):
        return frozenset()

    from mendgraph.nodes.small_model.examples import foreign_lines
    from mendgraph.nodes.small_model.turn_view import view_turn

    view = view_turn(messages)
    requests = [message.text for message in messages if is_typed(message)]
    return foreign_lines("\n".join([*requests, *view.files, *view.files.values(), *view.found]))


def request_checks(request: str) -> "RequestChecks":
    """Return the checks of finished work that follow from the words of a request."""
    from mendgraph.nodes.small_model.request_checks import RequestChecks

    return RequestChecks(request)


def answer_judge(
    profile: Profile,
    messages: Sequence[AnyMessage],
    *,
    settled: bool,
    acting_tools: Collection[str],
    read_only: bool,
) -> Callable[[str], ExtractionError | None]:
    """Return a function that compares the answer of a small model with what happened in the turn.

    A `settled` turn has changed a file, or the model was corrected often enough. `acting_tools` may have done the work
    outside of the workspace.
    """
    from mendgraph.nodes.small_model.answers import AnswerFacts, answer_error
    from mendgraph.nodes.small_model.turn_view import other_agents_messages, used_tools, view_turn

    view = view_turn(messages)
    done_elsewhere = other_agents_messages(messages) or not used_tools(messages).isdisjoint(acting_tools)
    facts = AnswerFacts(
        request=last_request(messages),
        settled=settled or bool(done_elsewhere),
        checks_failed_before=is_in_blocks(profile) and bool(view.evidence),
        change_was_blocked=read_only or view.refused,
        first=sum(is_request(message) for message in messages) == 1,
    )

    return partial(answer_error, facts=facts)


def holds_edits(text: str) -> bool:
    """Return whether a text has edits in block form, if one file was shown."""
    from mendgraph.nodes.small_model.blocks import read_blocks

    return bool(read_blocks(text, (_SHOWN_FILE,)).outcomes)


_SHOWN_FILE = "file.py"
"""Stands for the one file that was shown: a block of definitions without a path belongs to it."""
