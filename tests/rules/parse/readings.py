"""Readers of replies in each form, shorthands for their input and output, and a strategy for any reply."""

from functools import partial

from mendgraph.nodes.execute_tools.registry import ActionRegistry
from mendgraph.nodes.execute_tools.tools import default_tools
from mendgraph.nodes.parse.answers import TurnFacts, answer_problems
from mendgraph.nodes.parse.reading import Reader, ReplyReading, read_reply
from mendgraph.nodes.records import EditForm, Effect, FinishReason, JsonMap, ModelReply, Profile, Protocol, RawCall
from mendgraph.nodes.small_model.block_form import ShownBlocks

REGISTRY = ActionRegistry(default_tools())
WRITING = frozenset(spec.name for spec in REGISTRY.specs() if spec.effect is Effect.WRITE)


def reader(
    protocol: Protocol = Protocol.TEXT,
    edit_form: EditForm = EditForm.REPLACE,
    schema: JsonMap | None = None,
    shown_paths: tuple[str, ...] = (),
    turn: TurnFacts | None = None,
    request: str = "",
) -> Reader:
    profile = Profile(protocol=protocol, edit_form=edit_form)
    check = partial(answer_problems, schema=schema)
    blocks = ShownBlocks(shown_paths, request) if edit_form is EditForm.BLOCKS else None
    facts = turn or TurnFacts()
    return Reader(profile, REGISTRY.names(), REGISTRY.validate, check, WRITING, turn=facts, blocks=blocks)


TEXT, NATIVE = reader(), reader(Protocol.NATIVE)
BLOCKS = reader(edit_form=EditForm.BLOCKS, shown_paths=("calc.py",))
NATIVE_BLOCKS = reader(Protocol.NATIVE, EditForm.BLOCKS, shown_paths=("calc.py",))


def read(how: Reader, text: str = "", *calls: RawCall, finish: FinishReason = FinishReason.STOP) -> ReplyReading:
    return read_reply(ModelReply(text=text, calls=calls, finish_reason=finish), 3, how)


def raw(tool: str, arguments: str, call_id: str = "") -> RawCall:
    return RawCall(call_id=call_id, tool=tool, arguments=arguments)
