"""Which part of the history the model is shown, so that it fits the model's window.

The history itself stays complete. A `Window` says from where on it is shown, and holds the text that stands for what
was before. When the view outgrows the model's window, old results are cleared, then the beginning gives way to a
summary, or slides out. One compaction is a large step, so that there are few of them: each costs the endpoint its kept
prefix. The current request is never given up, and a call is never parted from its results.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import Annotated, Any, Final, Literal, NamedTuple

from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from pydantic import ConfigDict, Field, ValidationError

from mendgraph.nodes import records
from mendgraph.nodes.call_model.prompts.estimates import estimate_tokens
from mendgraph.nodes.call_model.prompts.prompt import as_map, message_of, size_of as bytes_of
from mendgraph.nodes.language.history import RESULT_MESSAGE_NAME, is_request
from mendgraph.nodes.language.project_notes import ProjectNotes, notes_text
from mendgraph.nodes.language.text_protocol import parse_text_results, render_native_result, render_text_results

SizeOf = Callable[[AnyMessage], int]
"""(message) -> its tokens, estimated. Asked for each message of a view at each call, so it should know them again."""

StandIns = dict[str, tuple[AnyMessage, AnyMessage]]
"""What is shown in place of messages, by id, each with what it was made of: kept by a run, so each is made once."""

MOST_STAND_INS = 2_000


class Window(records.Record):
    """What is shown of a thread's history; the default shows all of it.

    `first` is the id of the first message that is shown as it is, `head` the text that stands for those before it, and
    `cleared` are the messages whose results are replaced by notes. An id that the history does not have hides nothing.
    `summary` is the model's own in the head; `no_summary` says that the last one was of no use, so that no other is
    asked for.
    `tokens` is what a request had, as estimated, that its endpoint has refused as too long.
    """

    first: str = ""
    head: str = ""
    cleared: tuple[str, ...] = ()
    summary: str = ""
    no_summary: bool = False
    tokens: int | None = None


WHOLE = Window()


def shown(history: Sequence[AnyMessage], window: Window, made: StandIns | None = None) -> list[AnyMessage]:
    """The messages that the model is shown; the same objects from call to call where `made` is the same.

    A head that would stand right before a request is one message with it: some endpoints take no two in a row.
    """
    start = first_shown(history, window)
    made = {} if made is None else made
    if len(made) > MOST_STAND_INS:
        made.clear()

    view = shown_after(history, window.cleared, start, made)
    if not start:
        return view
    if view and is_request(view[0]) and isinstance(view[0].content, str):
        return [_added("head", f"{window.head}\n\n{view[0].content}", made), *view[1:]]
    return [_added("head", window.head, made), *view]


def shown_after(history: Sequence[AnyMessage], cleared: Sequence[str], start: int, made: StandIns) -> list[AnyMessage]:
    """The messages from `start` on, with stand-ins for those that are cleared."""
    if not cleared:
        return list(history[start:])
    cleared_ids = frozenset(cleared)
    return [stand_in(message, made) or message if message.id in cleared_ids else message for message in history[start:]]


def first_shown(history: Sequence[AnyMessage], window: Window) -> int:
    """The place of the first message that is shown as it is; 0 where none is hidden."""
    if not window.first:
        return 0
    # From the end: what is shown is short, what is hidden may be long.
    return next((place for place in range(len(history) - 1, 0, -1) if history[place].id == window.first), 0)


def stand_in(message: AnyMessage, made: StandIns) -> AnyMessage | None:
    """The message without its results, made once; None where it carries none."""
    cached = made.get(message.id or "")
    if cached is None or cached[0] != message:
        cleared = without_results(message)
        if cleared is None:
            return None
        cached = made[message.id or ""] = (message, cleared)
    return cached[1]


def _added(kind: str, text: str, made: StandIns) -> AnyMessage:
    """A message that the history does not have. Whoever remembers messages takes no other for it, by its id."""
    name = f"{kind}-{sha256(text.encode('utf-8', 'replace')).hexdigest()[:16]}"
    message = HumanMessage(text, id=name)
    return made.setdefault(name, (message, message))[1]


LARGEST_KEPT_FIELD = 200  # characters of JSON up to which a field of a cleared result stays
LONGEST_ERROR = 400  # characters of an error's message that stay
NOTE_FIELD = "left_out"


def is_result(message: AnyMessage) -> bool:
    """Does this message carry results of calls?"""
    in_text = isinstance(message, HumanMessage) and message.name == RESULT_MESSAGE_NAME
    return in_text or isinstance(message, ToolMessage)


def without_results(message: AnyMessage) -> AnyMessage | None:
    """The message with short stand-ins for its results, under an id of its own; None where it carries none."""
    if not is_result(message):
        return None
    if isinstance(message, ToolMessage):
        content = _without_result(message.text, message.name or "", failed=message.status == "error")
    else:
        content = "\n".join(map(_without_line, message.text.split("\n")))
    return message.model_copy(update={"content": content, "id": f"{message.id}-cleared"})


def _without_result(text: str, tool: str, *, failed: bool) -> str:
    """The stand-in of a native result; what is no envelope of ours is left out as a whole."""
    try:
        envelope: Any = json.loads(text)
    except (ValueError, RecursionError):
        envelope = None
    result = _stand_in(envelope, tool) if isinstance(envelope, dict) else None
    if result is None:
        data = {NOTE_FIELD: _note(len(text), tool, {})}
        error = records.ToolError(code=records.ToolErrorCode.IO_ERROR, message=_clipped(text)) if failed else None
        result = records.ToolResult(ok=not failed, data={} if failed else data, error=error)
    return render_native_result(records.CallResult(call_id="", tool=tool, result=result))


def _without_line(line: str) -> str:
    for envelope in parse_text_results(line):
        tool = str(envelope.get("tool", ""))
        if (result := _stand_in(envelope, tool)) is not None:
            return render_text_results([records.CallResult(call_id="", tool=tool, result=result)])
    return _clipped(line)


def _stand_in(envelope: records.JsonMap, tool: str) -> records.ToolResult | None:
    data = envelope.get("data")
    error = envelope.get("error")
    if isinstance(error, dict):
        code = error.get("code")
        error_code = (
            records.ToolErrorCode(code) if code in set(records.ToolErrorCode) else records.ToolErrorCode.IO_ERROR
        )
        return records.ToolResult.failure(error_code, _clipped(str(error.get("message", ""))))
    if not isinstance(data, dict):
        return None
    fields_kept = {
        name: value for name, value in data.items() if name != NOTE_FIELD and _length(value) <= LARGEST_KEPT_FIELD
    }
    if len(fields_kept) == len(data):
        return records.ToolResult(ok=True, data=data)
    removed_length = sum(_length(value) for name, value in data.items() if name not in fields_kept)
    return records.ToolResult(ok=True, data={**fields_kept, NOTE_FIELD: _note(removed_length, tool, fields_kept)})


def _length(value: Any) -> int:
    return len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def _note(characters: int, tool: str, kept: records.JsonMap) -> str:
    """What is missing, and how to get it again: what a change gave back is gone, but its file can be read."""
    path = kept.get("path")
    if isinstance(path, str) and not kept.keys().isdisjoint({"action", "replacements"}):
        return f"{characters} characters, to save room; read {path} to see it as it is"
    call = f"call {tool or 'the tool'} on {path}" if isinstance(path, str) else "make the same call"
    return f"{characters} characters, to save room; {call} again if you need them, fewer at a time if they are many"


def _clipped(text: str) -> str:
    if len(text) <= LONGEST_ERROR:
        return text
    return f"{text[:LONGEST_ERROR]} [... {len(text) - LONGEST_ERROR} more characters]"


def with_notes(view: Sequence[AnyMessage], notes: Sequence[ProjectNotes], made: StandIns) -> list[AnyMessage]:
    """The messages that are shown, with the notes before the first one; the same objects from call to call."""
    if not notes:
        return list(view)
    first = view[0] if view else None
    joins = isinstance(first, HumanMessage) and first.name != RESULT_MESSAGE_NAME and isinstance(first.content, str)
    content = notes_before(notes, str(first.content)) if first is not None and joins else notes_text(notes)
    front = _added("notes", content, made)
    return [front, *view[1:]] if joins else [front, *view]


def notes_before(notes: Sequence[ProjectNotes], request: str) -> str:
    """The notes, and behind them what the person says."""
    return f"{notes_text(notes)}\n\nThe request:\n{request}"


TRIGGER: Final = 0.85  # the share of the window that the next request and its reply may fill
TARGET, CUT = 0.6, 0.65
"""The share of what the view may have to which it is brought down, and the share of that which a beginning leaves.

What is left after a beginning was given up then holds little that could be cleared the next time.
"""

KEPT_EXCHANGES: Final = 3  # the last exchanges, which keep their results; fewer where they are too large
LEAST_CLEARED: Final = 40  # tokens that clearing a result has to save; half of it, where that is more
SUMMARY_TOKENS: Final = 800  # what a summary may have
REFUSED: Final = 0.9  # after a refusal the request shrinks at least to this share of what it was


class Budget(NamedTuple):
    """What a request has to fit in: the window (None where nobody knows it), and what is not history, in tokens.

    `fixed_tokens` are system prompt, tools and corrections, `output_tokens` are those that the reply may have.
    """

    window_tokens: int | None
    fixed_tokens: int
    output_tokens: int


CompactionKind = Literal["cleared", "summarised", "slid"]


class Compacted(NamedTuple):
    """The new window, and what it saved: the input tokens of the request, before and after, estimated."""

    window: Window
    kind: CompactionKind
    tokens_before: int
    tokens_after: int


@dataclass(frozen=True)
class NeedsSummary:
    """A summary is worth a model call: `messages` ask for it. `fallback` is what to do if there is no reply."""

    messages: tuple[records.JsonMap, ...]
    fallback: Compacted
    conclude: Callable[[str], Compacted] = field(repr=False)
    """(text of the reply) -> the view with the summary if it counts, else the fallback, and none is asked for again."""


def compact(
    history: Sequence[AnyMessage],
    window: Window,
    plan: records.Plan | None,
    changed: Sequence[str],
    size_of: SizeOf,
    budget: Budget,
    *,
    forced: bool = False,
    made: StandIns | None = None,
) -> Compacted | NeedsSummary | records.StopCause | None:
    """Say what to do before the next request; None means that it fits as it is.

    `forced` is for a request that the endpoint has refused as too long: it is brought down to half of itself, or of
    the window. A stop means that not even the request and its last exchange fit.
    """
    made = {} if made is None else made
    total = sum(map(size_of, shown(history, window, made)))
    half = total // 2
    shrunk = int(total * REFUSED)
    if budget.window_tokens is None:
        if not forced:
            return None
        aim = half
        most = shrunk
        hard = shrunk
    else:
        besides = budget.fixed_tokens + budget.output_tokens
        most = int(budget.window_tokens * TRIGGER) - besides
        hard = budget.window_tokens - besides
        if not forced and total <= most:
            return None
        aim = max(0, int(most * TARGET))
        if forced:
            aim = min(aim, half)
            most = min(most, shrunk)
            hard = min(hard, shrunk)
    tail = history[first_shown(history, window) :]
    step = _Compaction(history, tail, window, plan, changed, size_of, budget, made, aim, most, hard, total)
    done = step.best()
    if done is not None or total <= hard:
        return done
    where = "the endpoint's" if budget.window_tokens is None else f"the model's window of {budget.window_tokens} tokens"
    message = (
        f"The conversation does not fit {where}, and nothing more can be left out. Choose a model with a larger "
        "window, lower max_output_tokens_per_call, or ask for less at a time."
    )
    return records.StopCause(reason=records.StopReason.CONTEXT_OVERFLOW, message=message)


MOST_EARLIER = 5  # earlier requests of the thread that are quoted, the latest ones
LONGEST_EARLIER = 1_000  # characters of an earlier request that are quoted
MOST_CHANGED = 40  # changed files that are named, the latest ones
SUMMARY_TITLE = "From an automatic summary of what was before, not the person's words:"
"""Above what a model wrote in a message that otherwise speaks for the person."""

LEAST_SAVING = 0.3  # the share by which a view has to shrink for its summary to count
_MARKS = {records.PlanStatus.DONE: "[x]", records.PlanStatus.IN_PROGRESS: "[>]", records.PlanStatus.PENDING: "[ ]"}


@dataclass(frozen=True)
class _Compaction:
    """One look for the best way to make the view smaller. Places are those in `tail`: the history that is shown.

    In tokens, `aim` is what the view is brought down to, `most` what it may grow to, and `hard` what it cannot pass.
    """

    history: Sequence[AnyMessage]
    tail: Sequence[AnyMessage]
    window: Window
    plan: records.Plan | None
    changed: Sequence[str]
    size_of: SizeOf
    budget: Budget
    made: StandIns
    aim: int
    most: int
    hard: int
    total: int

    @property
    def start(self) -> int:
        return len(self.history) - len(self.tail)

    @cached_property
    def starts(self) -> list[int]:
        """The places of all messages but results, which stay with their call."""
        return [place for place, message in enumerate(self.tail) if not is_result(message)]

    @cached_property
    def sizes(self) -> list[int]:
        return list(map(self.size_of, shown_after(self.history, self.window.cleared, self.start, self.made)))

    def best(self) -> Compacted | NeedsSummary | None:
        """The mildest step that reaches the aim, else the one that makes the view as small as it has to be."""
        replies = [place for place in self.starts if isinstance(self.tail[place], AIMessage)]
        head = self._tokens(self.window.head if self.start else "")
        for latest in replies[-KEPT_EXCHANGES:]:
            cleared = self._cleared(latest, head)
            sizes = [cleared.get(m.id or "", size) for m, size in zip(self.tail, self.sizes, strict=True)]
            if cleared and head + sum(sizes) <= self.aim:
                return self._done("cleared", 0, cleared, self.window.head)
            if cut := self._cut(latest, sizes):
                return self._shortened(cut, cleared)
        request = max((place for place in self.starts if is_request(self.tail[place])), default=-1)
        last = max(request, *replies[-1:], 0)
        alone = not self.start and request == 0 and last == 1  # nothing is before it but that request
        if alone or not self.tail or not self.tail[last].id:
            last = 0
        for before, bare in ((last, False), (len(self.tail), True)):  # the results of the last exchange go last
            cleared = self._cleared(before, self.total if bare else head)
            begin = self._head(last, bare=bare)
            done = self._done("slid", last, cleared, begin)
            if done.tokens_after <= self.budget.fixed_tokens + self.hard and done.tokens_after < done.tokens_before:
                return done
        return None

    def _cleared(self, before: int, head: int) -> dict[str, int]:
        """Which results before this place to clear, with their new sizes, until the aim is reached.

        Oldest and largest first: the worth of clearing one is what it saves, times its age.
        """
        tokens = head + sum(self.sizes)
        clearable = []
        already = frozenset(self.window.cleared)
        for place, message in enumerate(self.tail[:before]):
            if message.id and message.id not in already and (cleared := stand_in(message, self.made)) is not None:
                size = self.size_of(cleared)
                saved = self.sizes[place] - size
                if saved >= max(LEAST_CLEARED, self.sizes[place] // 2):
                    clearable.append((saved * (len(self.tail) - place), saved, message.id, size))
        chosen = {}
        for _, saved, name, size in sorted(clearable, key=lambda candidate: -candidate[0]):
            if tokens <= self.aim:
                break
            tokens, chosen[name] = tokens - saved, size
        return chosen

    def _cut(self, latest: int, sizes: list[int]) -> int:
        """Where to begin, `latest` at most, so that it all fits the aim with a head and a summary; 0 where it does not.

        The earliest place that goes as deep as `CUT` wants it, where none does the latest.
        """
        needed = self._tokens(self._head(len(self.tail))) + SUMMARY_TOKENS + sum(sizes[latest:])
        if needed > self.aim or not self.tail[latest].id:
            return 0
        cut = latest
        end = latest
        for place in reversed([each for each in self.starts if 0 < each < latest]):
            needed = needed + sum(sizes[place:end])
            end = place
            if needed > self.aim * CUT:
                break
            cut = place if self.tail[place].id else cut
        return cut

    def _shortened(self, cut: int, cleared: dict[str, int]) -> Compacted | NeedsSummary:
        slid = self._done("slid", cut, cleared, self._head(cut))
        requests = [message.text for message in self.history if is_request(message)]
        request = requests[-1] if requests else ""
        most = self.aim if self.budget.window_tokens is None else self.most
        messages = summary_request(self.tail[:cut], request, self.window.summary, self.size_of, most)
        if messages is None or self.window.no_summary:
            return slid

        def conclude(reply: str) -> Compacted:
            if text := read_summary(reply):
                done = self._done("summarised", cut, cleared, self._head(cut, text), text)
                after = done.tokens_after - self.budget.fixed_tokens
                if after <= self.aim and after <= self.total * (1 - LEAST_SAVING):
                    return done
            return slid._replace(window=slid.window.model_copy(update={"no_summary": True}))

        return NeedsSummary(messages, slid, conclude)

    def _head(self, cut: int, summary: str | None = None, *, bare: bool = False) -> str:
        """What stands for all before this place; `summary` is a new one of the part that is given up now.

        A `bare` one holds only what a run cannot go on without: the request, and that something is missing.
        """
        end = self.start + cut
        if not end:
            return ""
        parts = ["The beginning of this conversation is not shown any more, to save room; files can be read again."]
        requests = [(place, message.text) for place, message in enumerate(self.history) if is_request(message)]
        before = [text for place, text in requests if place < end]
        request = before.pop() if before and requests[-1][0] < end else None
        if not bare:
            parts += self._facts(before, self.window.summary if summary is None else summary)
        if request is not None:
            parts.append(f"The request, which you are working on:\n{request}")
        return "\n\n".join(parts)

    def _facts(self, earlier: Sequence[str], summary: str) -> list[str]:
        facts = []
        if earlier:
            quoted = [f"- {quote_bounded(text)}" for text in earlier[-MOST_EARLIER:]]
            facts.append("\n".join(["Earlier requests:", *quoted]))
        if summary:
            facts.append(f"{SUMMARY_TITLE}\n{summary}")
        if self.changed:
            facts.append("Changed files: " + ", ".join([*dict.fromkeys(self.changed)][-MOST_CHANGED:]))
        if self.plan is not None and self.plan.steps:
            steps = [f"{_MARKS[step.status]} {step.title}" for step in self.plan.steps]
            facts.append("\n".join(["The plan:", *steps]))
        return facts

    def _done(
        self, kind: CompactionKind, cut: int, cleared: dict[str, int], head: str, summary: str | None = None
    ) -> Compacted:
        names = {*self.window.cleared, *cleared}
        window = self.window.model_copy(
            update={
                "first": (self.tail[cut].id or "") if cut else self.window.first,
                "head": head,
                "cleared": tuple(m.id for m in self.tail[cut:] if m.id in names),
                "summary": self.window.summary if summary is None else summary,
            }
        )
        after = sum(map(self.size_of, shown(self.history, window, self.made)))
        fixed = self.budget.fixed_tokens
        return Compacted(window, kind if cut else "cleared", fixed + self.total, fixed + after)

    def _tokens(self, text: str) -> int:
        return self.size_of(HumanMessage(text)) if text else 0


def quote_bounded(text: str, longest: int = LONGEST_EARLIER) -> str:
    """The text, or its head and its tail with the number of characters between them."""
    if len(text) <= longest:
        return text
    tail = longest // 3
    return f"{text[: longest - tail]} [... {len(text) - longest} characters ...] {text[-tail:]}"


MOST_ITEMS = 20
SUMMARY_SYSTEM = f"""\
You sum up the first part of a coding agent's work, so that it can go on without seeing that part again.
Answer with one JSON object and nothing else:
{{"done": [...], "findings": [...], "left": [...], "files": [...]}}
Each is a list of at most {MOST_ITEMS} short texts: what was done, what was found out (names, causes, exact values, \
errors), what is left to do, and which files matter and why. Keep only what is still needed; do not repeat the \
request."""


_Item = Annotated[str, Field(max_length=400)]


class Summary(records.Record):
    """What a summary has to look like; a section's title is what the model is shown above it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    done: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Done so far:")
    findings: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Found out:")
    left: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Left to do:")
    files: tuple[_Item, ...] = Field(default=(), max_length=MOST_ITEMS, title="Files that matter:")


def read_summary(reply: str) -> str:
    """The summary in a reply as the model is shown it, one line an item; "" where it fits no schema or is empty.

    A fence or words around it do no harm.
    """
    start = reply.find("{")
    end = reply.rfind("}")
    try:
        summary = Summary.model_validate_json(reply[start : end + 1])
    except (ValidationError, ValueError):
        return ""
    sections = [(section.title or "", getattr(summary, name)) for name, section in Summary.model_fields.items()]
    if not any(item.strip() for _, items in sections for item in items):
        return ""
    lines = ([title, *(f"- {' '.join(item.split())}" for item in items)] for title, items in sections if items)
    return "\n".join(chain.from_iterable(lines))


def summary_request(
    old: Sequence[AnyMessage], request: str, earlier_summary: str, size_of: SizeOf, most_tokens: int
) -> tuple[records.JsonMap, ...] | None:
    """The messages that ask for a summary of `old`, at most `most_tokens` as `size_of` sees them.

    The reply is told how many words it may have, so that it is whole. Long messages are shown clipped, and if that is
    not enough, the oldest are left out. None where nothing fits.
    """
    before = ["The summary of what was before that:", earlier_summary] if earlier_summary else []
    parts = ["The request of the person:", quote_bounded(request, 2_000), *before, "What happened:"]
    for clipping, first in ((2_000, 0), (600, 0), (200, 0), (200, len(old) // 2), (200, len(old) * 3 // 4)):
        lines = [quote_bounded(_line_of(message), clipping) for message in old[first:]]
        words = SUMMARY_TOKENS // 2  # a high rate for prose: the names and the JSON around it have more tokens
        text = "\n\n".join([*parts, *lines, f"Now answer with the JSON object: {words} words at most."])
        if size_of(HumanMessage(SUMMARY_SYSTEM)) + size_of(HumanMessage(text)) <= most_tokens:
            return message_of("system", SUMMARY_SYSTEM), message_of("user", text)
    return None


def _line_of(message: AnyMessage) -> str:
    if isinstance(message, AIMessage):
        calls = [f"{call['name']}({json.dumps(call['args'], ensure_ascii=False)})" for call in message.tool_calls]
        return "AGENT: " + "\n".join(part for part in (message.text, *calls) if part)
    return ("RESULT: " if is_result(message) else "PERSON: ") + message.text


class Memory:
    """The history of an agent in Python, and what of it its model is shown: the nodes' own window. Source: spec 4.

    `messages` stays complete. What is shown fits `window_tokens` (None: all is shown) with a reply of `reply_tokens`:
    old results are cleared first, then what was first gives way to the summary of `summarise`, or slides out.
    """

    def __init__(
        self,
        window_tokens: int | None = None,
        *,
        reply_tokens: int = 1_024,
        summarise: Callable[[list[records.JsonMap]], str] | None = None,
    ) -> None:
        """`summarise` is given the messages of a request for a summary, and gives back the model's reply."""
        self.messages: list[AnyMessage] = []
        self.window = WHOLE
        self._tokens, self._reply_tokens, self._summarise = window_tokens, reply_tokens, summarise
        self._made: StandIns = {}

    def add(self, *messages: AnyMessage) -> None:
        """Remember these messages; one without an id gets one."""
        for message in messages:
            name = message.id or f"memory-{len(self.messages)}"
            self.messages.append(message.model_copy(update={"id": name}))

    def shown(self, besides: int = 0) -> list[AnyMessage]:
        """The messages for the next request, which has `besides` tokens of its own.

        Where not even the last request and exchange fit, they are shown all the same.
        """

        def tokens_of(message: AnyMessage) -> int:
            return estimate_tokens(bytes_of(as_map(message, native=False)), 1)

        budget = Budget(self._tokens, besides, self._reply_tokens)
        compacted = compact(self.messages, self.window, None, (), tokens_of, budget, made=self._made)
        if isinstance(compacted, NeedsSummary):
            compacted = (
                compacted.conclude(self._summarise([*compacted.messages])) if self._summarise else compacted.fallback
            )
        if isinstance(compacted, Compacted):
            self.window = compacted.window
        return shown(self.messages, self.window, self._made)
