"""Code that is not mutated, because no test can or should notice the change. Pure.

- annotations, type aliases (module-level names in CapWords), `if TYPE_CHECKING:` and casts, which mypy checks;
- decorators and the keywords of a class, `frozen` and `slots`, whose restrictions mypy enforces as well;
- docstrings and `__all__`; titles, descriptions and examples of a schema's fields; logging;
- texts for people: a literal with a letter and a blank that is not a raw string, and parts of a longer literal;
- `isinstance`, `len` and `assert_never`, whose mutants only raise TypeError; `zip(strict=)` and the "utf-8" of encode
  and decode, whose values are the ones that hold anyway.
"""

import re
from typing import Final

import libcst as cst

UNTOUCHED_CALLS: Final = frozenset({"NewType", "TypeVar", "assert_never", "cast", "isinstance", "issubclass", "len"})
UNTOUCHED_KEYWORDS: Final = frozenset({"description", "examples", "frozen", "help", "slots", "title"})
LOGGERS: Final = frozenset({"_LOG", "_log", "log", "logger", "logging"})
_TYPE_NAME: Final = re.compile(r"_?[A-Z][A-Za-z0-9]*[a-z][A-Za-z0-9]*")
_MESSAGE: Final = re.compile(r"[A-Za-z].* | .*[A-Za-z]", re.DOTALL)
_KINDS: Final = (cst.Annotation, cst.ConcatenatedString, cst.Decorator, cst.Import, cst.ImportFrom, cst.TypeAlias)


def is_left_out(node: cst.CSTNode, *, in_function: bool) -> bool:
    """Whether this node and its children are not mutated."""
    match node:
        case cst.Call():
            return _is_untouched(node)
        case cst.If(test=cst.Name(value="TYPE_CHECKING")):
            return True
        case cst.Expr(value=cst.SimpleString() | cst.ConcatenatedString() | cst.Ellipsis()):
            return True
        case cst.Assign(targets=[cst.AssignTarget(target=cst.Name(value=name))]):
            return name in {"__all__", "__slots__"} or (not in_function and bool(_TYPE_NAME.fullmatch(name)))
        case cst.AnnAssign(annotation=cst.Annotation(annotation=cst.Name(value="TypeAlias"))):
            return True
        case cst.SimpleString():
            return "r" not in node.prefix and bool(_MESSAGE.search(node.raw_value))
    return isinstance(node, _KINDS)


def untouched_arguments(call: cst.Call) -> list[cst.Arg]:
    """Return the arguments of a call that are neither mutated nor removed."""
    return [argument for argument in call.args if _has_no_effect(call, argument)]


def changes_nothing(node: cst.CSTNode, mutated: cst.CSTNode) -> bool:
    """Whether the mutant of a call differs only in an untouched argument, or in None in place of False."""
    if not isinstance(node, cst.Call) or not isinstance(mutated, cst.Call):
        return False

    mutated_arguments = {id(argument) for argument in mutated.args}
    differences = [argument for argument in node.args if id(argument) not in mutated_arguments]
    if any(_has_no_effect(node, argument) for argument in differences):
        return True

    is_replacement = len(node.args) == len(mutated.args)
    return is_replacement and any(_is_false(argument) for argument in differences)


def _is_false(argument: cst.Arg) -> bool:
    return isinstance(argument.value, cst.Name) and argument.value.value == "False"


def _is_untouched(call: cst.Call) -> bool:
    match call.func:
        case cst.Name(value=name):
            return name in UNTOUCHED_CALLS
        case cst.Attribute(value=cst.Name(value=name)):
            return name in LOGGERS
    return False


def _has_no_effect(call: cst.Call, argument: cst.Arg) -> bool:
    """Whether no test can notice a change of this argument."""
    name = argument.keyword.value if argument.keyword else ""
    if name == "strict":
        return isinstance(call.func, cst.Name) and call.func.value == "zip"
    if name in UNTOUCHED_KEYWORDS:
        return True

    value = argument.value
    return isinstance(value, cst.SimpleString) and value.raw_value.lower() in {"utf-8", "utf8"}
