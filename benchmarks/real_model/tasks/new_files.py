"""Requests for files that do not exist yet."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Task

STACK = '''class Stack:
    """Last in, first out."""

    def __init__(self):
        self._items = []

    def push(self, item):
        self._items.append(item)

    def pop(self):
        if not self._items:
            raise IndexError("the stack is empty")
        return self._items.pop()

    def __len__(self):
        return len(self._items)
'''
STACK_TESTS = """import unittest

from stack import Stack


class StackTest(unittest.TestCase):
    def test_last_in_first_out(self):
        stack = Stack()
        stack.push(1)
        stack.push(2)
        self.assertEqual((stack.pop(), stack.pop(), len(stack)), (2, 1, 0))

    def test_empty(self):
        with self.assertRaises(IndexError):
            Stack().pop()


if __name__ == "__main__":
    unittest.main()
"""

WORDS = '''"""Counting words."""

import re
from collections import Counter


def word_count(text):
    """How often each word occurs, in lower case."""
    return dict(Counter(re.findall("[a-z]+", text.lower())))
'''

LUHN = '''def is_valid(number):
    """Whether the digits pass the Luhn check; spaces do not count."""
    digits = number.replace(" ", "")
    if len(digits) < 2 or not digits.isdigit():
        return False
    total = 0
    for place, digit in enumerate(reversed(digits)):
        value = int(digit) * (1 + place % 2)
        total += value - 9 if value > 9 else value
    return total % 10 == 0
'''

APP = """import click
import requests


@click.command()
@click.argument("url")
def main(url):
    click.echo(requests.get(url, timeout=10).status_code)


if __name__ == "__main__":
    main()
"""

AVERAGE = '''class RunningAverage:
    """The average of all values so far."""

    def __init__(self):
        self.count = 0
        self._sum = 0.0

    def add(self, value):
        self.count += 1
        self._sum += value

    @property
    def value(self):
        return self._sum / self.count if self.count else None
'''

NEW_FILES = (
    Task(
        name="new_word_count",
        kind="new_files",
        half="dev",
        request=(
            "Please write a module words.py with a function word_count(text). It returns a dictionary with how often "
            "each word occurs; upper and lower case and punctuation do not matter: "
            'word_count("The cat, the dog.") == {"the": 2, "cat": 1, "dog": 1}'
        ),
        files={"README.md": "# Text tools\n"},
        check=Every(
            (
                Holds(
                    "from words import word_count",
                    (
                        "word_count('The cat, the dog.') == {'the': 2, 'cat': 1, 'dog': 1}",
                        "word_count('') == {} and word_count(' ... ') == {}",
                        "word_count('One one ONE!') == {'one': 3}",
                        "word_count('red (red) blue; red\\nblue') == {'red': 3, 'blue': 2}",
                    ),
                ),
                Keeps({"README.md": "# Text tools\n"}),
            )
        ),
        changes=True,
        solution={"words.py": WORDS},
    ),
    Task(
        name="new_stack_tests",
        kind="new_files",
        half="held_out",
        request=(
            "There are no tests for stack.py. Write some with unittest, in test_stack.py: that the last item comes out "
            "first, and that pop on an empty stack raises an IndexError."
        ),
        files={"stack.py": STACK},
        check=Every(
            (
                Keeps({"stack.py": STACK}),
                Holds(
                    "import re\n"
                    "GOOD = read('stack.py')\n"
                    "def tested(old='', new=''):\n"
                    "    with open('stack.py', 'w') as file:\n"
                    "        file.write(GOOD.replace(old, new))\n"
                    "    return run('-m', 'unittest', '-q', 'test_stack')[0]\n",
                    (
                        "len(re.findall(r'def test\\w*', read('test_stack.py'))) >= 2",
                        "tested() == 0",
                        "tested('_items.pop()', '_items.pop(0)') == 1",
                        "tested('raise IndexError', 'raise KeyError') == 1",
                    ),
                ),
            )
        ),
        changes=True,
        solution={"test_stack.py": STACK_TESTS},
    ),
    Task(
        name="new_luhn",
        kind="new_files",
        half="dev",
        request=(
            "I need luhn.py with is_valid(number: str) -> bool, the check of credit card numbers: counted from the "
            "right, every second digit is doubled (9 is subtracted if that gives more than 9), and the sum of all "
            'must be divisible by 10. Spaces are ignored, other characters make it False. is_valid("4539 1488 0343 '
            '6467") is True, is_valid("8273 1232 7352 0569") is False.'
        ),
        files={},
        check=Holds(
            "from luhn import is_valid",
            (
                "is_valid('4539 1488 0343 6467') is True",
                "is_valid('8273 1232 7352 0569') is False",
                "is_valid('79927398713') is True",
                "not any(is_valid('7992739871' + digit) for digit in '012456789')",
                "is_valid('059') is True and is_valid('59') is True",
                "is_valid('0555-5') is False and is_valid('05x9') is False",
            ),
        ),
        changes=True,
        solution={"luhn.py": LUHN},
    ),
    Task(
        name="new_requirements",
        kind="new_files",
        half="held_out",
        request=(
            "Create a requirements.txt for app.py, one package on each line: requests in version 2.31 or newer, and "
            "click exactly in version 8.1.7."
        ),
        files={"app.py": APP},
        check=Every(
            (
                Holds(
                    "lines = [line.split('#')[0].replace(' ', '') for line in read('requirements.txt').splitlines()]\n"
                    "wanted = sorted(line.lower() for line in lines if line)\n",
                    (
                        "len(wanted) == 2",
                        "wanted[0] == 'click==8.1.7'",
                        "wanted[1] in ('requests>=2.31', 'requests>=2.31.0')",
                    ),
                ),
                Keeps({"app.py": APP}),
            )
        ),
        changes=True,
        solution={"requirements.txt": "requests>=2.31\nclick==8.1.7\n"},
    ),
    Task(
        name="new_running_average",
        kind="new_files",
        half="dev",
        request=(
            "Write a class RunningAverage in average.py. add(value) takes a number in, the property value is the "
            "average of all numbers so far (None before the first), and the attribute count says how many there were. "
            "After adding 2 and 4, value is 3.0 and count is 2."
        ),
        files={"notes.txt": "average of sensor readings, see mail from Monday\n"},
        check=Holds(
            "from average import RunningAverage\n"
            "def fed(*values):\n"
            "    average = RunningAverage()\n"
            "    for value in values:\n"
            "        average.add(value)\n"
            "    return average.value, average.count\n",
            (
                "fed(2, 4) == (3.0, 2)",
                "fed() == (None, 0)",
                "fed(1, 1, 4) == (2.0, 3) and fed(-1, 1) == (0.0, 2)",
                "fed(0.5) == (0.5, 1)",
            ),
        ),
        changes=True,
        solution={"average.py": AVERAGE},
    ),
)
