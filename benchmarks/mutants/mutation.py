"""The mutants of a source file, by mutmut's operators. Each mutant has one change. Pure."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, CodeSpan, MetadataWrapper
from mutmut.mutation.mutators import mutation_operators, operator_string

from benchmarks.mutants.left_out import changes_nothing, is_left_out, untouched_arguments


@dataclass(frozen=True)
class Mutant:
    """One change to a file: the bytes from `start` to `end` become `text`."""

    file: str
    start: int
    end: int
    text: str
    function: str | None
    """The qualified name of the outermost function with the change; None for a change of a module or class."""

    def apply(self, source: str) -> str:
        """Return the mutated text of the file."""
        data = source.encode()
        return (data[: self.start] + self.text.encode() + data[self.end :]).decode()

    def lines(self, source: str) -> tuple[int, str, str]:
        """Return the number of the first different line, and the different lines before and after, not indented."""
        before = [line.strip() for line in source.splitlines()]
        after = [line.strip() for line in self.apply(source).splitlines()]

        first = 0
        for old, new in zip_longest(before, after):
            if old != new:
                break
            first += 1

        tail = 0
        while tail < min(len(before), len(after)) - first and before[-1 - tail] == after[-1 - tail]:
            tail += 1
        old_lines = before[first : len(before) - tail]
        new_lines = after[first : len(after) - tail]
        return first + 1, "\n".join(old_lines), "\n".join(new_lines)


def mutants_of(file: str, source: str) -> list[Mutant]:
    """Return all distinct mutants of a file. Some are not valid or do not differ: see `is_another_program`.

    Args:
        file: The path of the file from the root.
        source: The text of the file.
    """
    finder = _Finder(file, source.encode())
    MetadataWrapper(cst.parse_module(source), unsafe_skip_copy=True).visit(finder)
    return list(dict.fromkeys(finder.mutants))


def is_another_program(mutant: Mutant, source: str) -> bool:
    """Whether the mutated file is valid Python and differs. mutmut's operators do not know the context of a node."""
    text = mutant.apply(source)
    try:
        compile(text, mutant.file, "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return text != source


class _Finder(cst.CSTVisitor):
    """A visitor that collects the mutants of each node."""

    METADATA_DEPENDENCIES = (ByteSpanPositionProvider,)

    def __init__(self, file: str, data: bytes) -> None:
        super().__init__()
        self.mutants: list[Mutant] = []
        self._file = file
        self._data = data
        self._names: list[str] = []
        self._function: str | None = None
        self._untouched: set[int] = set()

    def on_visit(self, node: cst.CSTNode) -> bool:
        if id(node) in self._untouched or is_left_out(node, in_function=self._function is not None):
            return False
        if isinstance(node, cst.Call):
            self._untouched.update(id(argument) for argument in untouched_arguments(node))
        if isinstance(node, cst.ClassDef):
            for part in (*node.bases, node.body):
                self._visit_named(part, node.name.value)
            return False
        if isinstance(node, cst.FunctionDef):
            node.params.visit(self)
            self._visit_body(node)
            return False
        if not isinstance(node, cst.Module):
            self.mutants.extend(self._mutants(node))
        return True

    def _visit_named(self, part: cst.CSTNode, name: str) -> None:
        self._names.append(name)
        part.visit(self)
        self._names.pop()

    def _visit_body(self, node: cst.FunctionDef) -> None:
        before = self._function
        self._function = before or ".".join([*self._names, node.name.value])
        self._visit_named(node.body, node.name.value)
        self._function = before

    def _mutants(self, node: cst.CSTNode) -> Iterator[Mutant]:
        span = self.get_metadata(ByteSpanPositionProvider, node, None)
        if not isinstance(span, CodeSpan):
            return
        for kind, operator in mutation_operators:
            if not isinstance(node, kind):
                continue
            for number, mutated in enumerate(operator(node)):
                if changes_nothing(node, mutated) or (operator is operator_string and number):
                    continue  # another letter case of a word is no better than the first mutant, another word
                start, end = span.start, span.start + span.length
                yield Mutant(self._file, start, end, self._text(mutated, start), self._function)

    def _text(self, mutated: cst.CSTNode, start: int) -> str:
        text = cst.Module([]).code_for_node(mutated)
        if not isinstance(mutated, cst.BaseStatement):
            return text
        indentation = self._data[self._data.rfind(b"\n", 0, start) + 1 : start].decode()
        return text.strip().replace("\n", f"\n{indentation}")
