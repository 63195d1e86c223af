"""The transcript of a scenario: one file in Markdown that tells its story for both protocols.

What is the same in both protocols stands once. Where they differ, both are quoted, one after the other.
"""

from collections.abc import Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from pathlib import Path

from tests.scenarios.narrator import FIRST_REQUEST, Entry
from tests.scenarios.scenario import Scenario
from tests.scenarios.values import fields, indented, shortened
from tests.vocabulary import JsonMap, OutcomeKind, Protocol

FOLDER = Path(__file__).parent / "transcripts"

NODES = "## Nodes"
"""The heading of the last section, which lists the nodes that ran: one line for each model call."""

TERMINALS = frozenset(OutcomeKind)

LABELS: Mapping[Protocol, str] = {Protocol.TEXT: "in the text protocol", Protocol.NATIVE: "with native calls"}


def transcript_path(name: str) -> Path:
    """Return the file of a transcript."""
    return FOLDER / f"{name}.md"


def scenario_transcript(scenario: Scenario, entries: Mapping[Protocol, Sequence[Entry]], path: Sequence[str]) -> str:
    """Write the transcript of a played scenario.

    Args:
        scenario: the scenario.
        entries: by the protocols in which it was played.
        path: the nodes that the machine visited, the same in all protocols.
    """
    parts = [f"# {scenario.name}", scenario.story, *_workspace(scenario), "## What happens"]
    if len(entries) == 1:
        ((protocol, protocol_entries),) = entries.items()
        parts += [
            f"Played {LABELS[protocol]} only.",
            *(text for entry in protocol_entries for text in _paragraphs(entry)),
        ]
    else:
        parts += _paragraphs_of_both_protocols(entries[Protocol.TEXT], entries[Protocol.NATIVE])
    parts += [NODES, indented("\n".join(_path_lines(path)))]
    return "\n\n".join(parts) + "\n"


def first_request_transcript(requests: Mapping[Protocol, JsonMap]) -> str:
    """Write what a run sends first: the system prompt, the tools and the parameters."""
    parts = [
        f"# {FIRST_REQUEST}",
        "What a run with default settings sends first. The other transcripts show only what differs from it.",
    ]
    for protocol, request in requests.items():
        system, *others = request["messages"]
        parameters = {name: value for name, value in request.items() if name not in {"messages", "tools"}}
        parts += [
            f"## First request {LABELS[protocol]}",
            "The system prompt:",
            indented(system["content"]),
            "The other messages:",
            *(indented(fields(message)) for message in others),
            "The parameters:",
            indented(fields(parameters)),
        ]
        for tool in request.get("tools", ()):
            function = dict(tool["function"])
            parts += [f"The tool `{function.pop('name')}`:", indented(fields(function))]
    return "\n\n".join(parts) + "\n"


def path_in(transcript: Path) -> list[str]:
    """Read the nodes of a transcript, each turn from `__start__` to `__end__`."""
    _, _, section = transcript.read_text(encoding="utf-8").rpartition(f"{NODES}\n")
    path: list[str] = []
    for line in section.split("\n"):
        nodes = line.strip().split(", ") if line.strip() else []
        path += ["__start__", *nodes] if nodes[:1] == ["begin_turn"] else nodes
        path += ["__end__"] if nodes and nodes[-1] in TERMINALS else []
    return path


def _workspace(scenario: Scenario) -> Iterator[str]:
    yield "## Workspace and settings"
    for name, text in scenario.files.items():
        yield f"`{name}`:"
        yield indented(shortened(text))
    if scenario.settings:
        yield "Settings:"
        yield indented(fields(scenario.settings))
    if scenario.tools:
        yield f"Tools beside the default ones: {', '.join(tool.name for tool in scenario.tools)}."
    if scenario.resumed:
        yield "Also played by leaving the run after each step and resuming it."


def _paragraphs_of_both_protocols(text: Sequence[Entry], native: Sequence[Entry]) -> Iterator[str]:
    """Tell two runs as one, with both versions where they differ."""
    matcher = SequenceMatcher(None, text, native, autojunk=False)
    for kind, start, end, other_start, other_end in matcher.get_opcodes():
        if kind == "equal":
            for entry in text[start:end]:
                yield from _paragraphs(entry)
        else:
            yield from _differences(text[start:end], native[other_start:other_end])


def _differences(text: Sequence[Entry], native: Sequence[Entry]) -> Iterator[str]:
    """Tell entries that differ. Those of the same words stand together, with both texts."""
    words = [entry.words for entry in text], [entry.words for entry in native]
    for kind, start, end, other_start, other_end in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        if kind == "equal":
            for one, other in zip(text[start:end], native[other_start:other_end], strict=True):
                yield one.words
                yield from (f"({LABELS[Protocol.TEXT]})", indented(one.text))
                yield from (f"({LABELS[Protocol.NATIVE]})", indented(other.text))
            continue
        for entry in text[start:end]:
            yield from _paragraphs(Entry(f"({LABELS[Protocol.TEXT]}) {entry.words}", entry.text))
        for entry in native[other_start:other_end]:
            yield from _paragraphs(Entry(f"({LABELS[Protocol.NATIVE]}) {entry.words}", entry.text))


def _paragraphs(entry: Entry) -> Iterator[str]:
    yield entry.words
    if entry.text:
        yield indented(entry.text)


def _path_lines(path: Sequence[str]) -> Iterator[str]:
    """One line for the start of each turn, and one for each model call."""
    line: list[str] = []
    for node in path:
        if line and node.partition(" ")[0] in {"__start__", "call_model"}:
            yield ", ".join(line)
            line = []
        if node not in {"__start__", "__end__"}:
            line.append(node)
    yield ", ".join(line)
