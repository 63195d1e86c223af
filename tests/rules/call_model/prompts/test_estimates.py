"""Token counts that endpoints report: a plausible one is used unchanged, for any text."""

from mendgraph.nodes.call_model.prompts.prompt import Prompt
from mendgraph.nodes.language.chat_messages import message_of
from tests.row_tables import rows

TEXTS = (  # the text, and its tokens in o200k_base, in which a token has the most characters
    ("words", "the " * 300, 301),
    ("long words", "international responsibility development environment " * 25, 101),
    ("letters", "a " * 300, 301),
    ("spaces", " " * 1_500, 13),
    ("lines without text", "   \n" * 200, 200),
    ("rules", ("=" * 80 + "\n") * 20, 40),
    ("indented code", "                                        x = 1\n" * 100, 600),
    ("closing braces", "};\n\n" * 100, 100),
    ("table", "| a | b |\n|---|---|\n" * 100, 1_000),
    ("Russian", "Функция сложения вычитает второе число из первого, исправьте её пожалуйста. " * 100, 1_901),
    ("Hindi", "कृपया इस फ़ंक्शन को ठीक करें ताकि यह दो संख्याओं का योग लौटाए और परीक्षण पास हो। " * 100, 2_602),
    ("Chinese", "请修复这个函数使其返回两个数字的和并让测试通过" * 200, 3_200),
)


def prompt(text: str) -> Prompt:
    return Prompt(messages=(message_of("user", text),))


@rows(*[row[1:] for row in TEXTS])
def test_plausible_token_count_is_accepted(text: str, tokens: int) -> None:
    assert prompt(text).believable_tokens(tokens) == tokens


def test_implausible_token_count_is_raised_to_the_minimum() -> None:
    assert prompt("Subtract the second number from the first one. " * 100).believable_tokens(1) == 400
    assert prompt("a " * 300).believable_tokens(1) == 75
    assert prompt(" " * 1_500).believable_tokens(1) == 1


def test_images_and_tools_do_not_raise_a_count() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    message = {"role": "user", "content": [{"type": "text", "text": "What is this? Say it now."}, image]}
    tool = {"type": "function", "function": {"name": "f", "description": "word " * 500, "parameters": {}}}
    assert Prompt(messages=(message,), tools=(tool,)).believable_tokens(1) == 3
