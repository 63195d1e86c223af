"""A reply without what the model invented after its calls: results, and the next words of a person."""

from nodes.language.dialects import recognised
from nodes.language.invented_results import cut_invented
from nodes.language.thoughts import without_thoughts
from nodes.records import FinishReason, ModelReply


def kept_part(reply: ModelReply, known_tools: frozenset[str]) -> ModelReply:
    """The reply up to where it begins to invent; the same object where it does not.

    Where the token limit cut what was invented, all of what is kept is there. A reply that is a call in another form
    as a whole is left alone: a text that it carries may look like a conversation.
    """
    if reply.calls or recognised(reply.text, known_tools):
        return reply
    kept, cut = cut_invented(reply.text, known_tools)
    if not cut:
        return reply
    finish = FinishReason.STOP if reply.finish_reason is FinishReason.LENGTH else reply.finish_reason
    return reply.model_copy(update={"text": kept.rstrip(), "finish_reason": finish})


def was_cut(said: ModelReply, kept: ModelReply) -> bool:
    """Whether the reply that was kept ends earlier than the one that was said, its thoughts left aside."""
    return kept.text != without_thoughts(said).text
