"""A reply without what the model invented after its calls: results, and the next words of a person."""

import re
from typing import Final

from mendgraph.nodes.language.content_blocks import without_thoughts
from mendgraph.nodes.language.dialects import begins_call, recognised
from mendgraph.nodes.language.text_protocol import extract_in_order, fence_after
from mendgraph.nodes.records import FinishReason, ModelReply


def kept_part(reply: ModelReply, known_tools: frozenset[str]) -> ModelReply:
    """The reply up to where it begins to invent; the same object where it does not.

    Where the token limit cut what was invented, all of what is kept is there. A reply that is a call in another form
    as a whole is left alone: a text that it carries may look like a conversation.
    """
    if reply.calls or recognised(reply.text, known_tools):
        return reply
    kept = cut_invented(reply.text, known_tools)
    if kept == reply.text:
        return reply
    finish = FinishReason.STOP if reply.finish_reason is FinishReason.LENGTH else reply.finish_reason
    return reply.model_copy(update={"text": kept.rstrip(), "finish_reason": finish})


def was_cut(said: ModelReply, kept: ModelReply) -> bool:
    """Whether the reply that was kept ends earlier than the one that was said, its thoughts left aside."""
    return kept.text != without_thoughts(said).text


RESULT_MARK: Final = "tool_result("
"""How a result line begins. It is ours alone to write, so it is cut even where no call stands before it."""

_ROLE_LINE = re.compile(
    r"""[ \t]*+(?:
        (?i:user|human|assistant|system|tool[ _]results?|observation)[ \t]*+:
      | \#{2,}+[ \t]*+(?i:user|human|assistant|system|tool[ _]results?|observation)\b[ \t]*+:?[ \t]*+$
      | <\|(?:im_start|im_end|start_header_id|eot_id|user|assistant|system|end|endoftext)\|>
      | <(?:tool_response|tool_result|tool_results)> | \[/?INST\] | </s>
    )""",
    re.VERBOSE,
)


def cut_invented(text: str, known_tools: frozenset[str]) -> str:
    """The reply up to the line where it begins to invent; the time is linear.

    A `tool_result(` line always begins it. After a call, in any form, so does the beginning of another role's message:
    `user:`, `### User`, `<|im_start|>`. What stands in a call or a code fence is content. Whether the whole reply is
    a call in another form should be asked before, for content may stand in it that looks like a role.
    """
    ends = {call.line_number: call.end_line for call in extract_in_order(text, known_tools)}
    at, inside, fence, called = 0, 0, "", False
    for number, line in enumerate(text.splitlines(keepends=True), start=1):
        inside = ends.get(number, inside)
        called = called or number in ends or begins_call(line)
        if number > inside:
            before, fence = fence, fence_after(line, fence)
            if not (before or fence) and (line.startswith(RESULT_MARK) or (called and _ROLE_LINE.match(line))):
                return text[:at]
        at += len(line)
    return text
