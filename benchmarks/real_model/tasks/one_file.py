"""Edit instructions that are about one file."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Task, replace_once

TEMPERATURE = '''ABSOLUTE_ZERO = -273.15


def to_fahrenheit(celsius):
    if celsius < ABSOLUTE_ZERO:
        raise ValueError("colder than absolute zero")
    return celsius * 9 / 5 + 32


def warmest(readings):
    """The name of the station with the highest temperature."""
    return max(readings, key=readings.get)


def describe(name, celsius, digits=1):
    return f"{name}: {celsius:.{digits}f} C ({to_fahrenheit(celsius):.{digits}f} F)"
'''
TYPED = (
    TEMPERATURE.replace("fahrenheit(celsius):\n", "fahrenheit(celsius: float) -> float:\n")
    .replace("(readings):", "(readings: dict[str, float]) -> str:")
    .replace("(name, celsius, digits=1):", "(name: str, celsius: float, digits: int = 1) -> str:")
)

# The only file of these tasks with letters beyond ASCII.
SLUG = '''"""Titles as parts of a URL."""

import re

LETTERS = {"ä": "ae", "ö": "oe", "ü": "ue", "ß": "ss", "é": "e"}


def plain(text):
    """Lower case, without umlauts and accents."""
    return "".join(LETTERS.get(letter, letter) for letter in text.lower())


def slugify(title):
    """Only letters and digits, with one dash between the words.

    >>> slugify("Größe & Gewicht")
    'groesse-gewicht'
    """
    words = re.findall("[a-z0-9]+", plain(title))
    return "-".join(words)
'''

UPLOAD = '''"""What may be uploaded."""

MAX_FILES = 5
MAX_FILE_MB = 5
MAX_FILE_BYTES = MAX_FILE_MB * 1024 * 1024
TYPES = {"png", "jpg", "pdf"}


def problem(name, size, already_there):
    """Why the file cannot be taken, or None."""
    if already_there >= MAX_FILES:
        return f"more than {MAX_FILES} files"
    if size > MAX_FILE_BYTES:
        return f"larger than {MAX_FILE_MB} MB"
    if name.rpartition(".")[2].lower() not in TYPES:
        return "unknown type"
    return None
'''

INVOICE = """from decimal import Decimal


def calc(quantity, price):
    return quantity * Decimal(price)


def net(lines):
    return sum((calc(quantity, price) for quantity, price in lines), Decimal(0))


def gross(lines, rate="0.19"):
    return net(lines) * (1 + Decimal(rate))


def print_invoice(lines):
    for number, (quantity, price) in enumerate(lines, 1):
        print(f"{number}. {quantity} x {price} = {calc(quantity, price)}")
    print(f"net {net(lines)}")
"""

BATCHES = '''from itertools import islice


def chunked(items, size):
    if size < 1:
        raise ValueError("size must be at least 1")
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk


def flatten(chunks):
    """The items of all chunks, one after the other."""
    return [item for chunk in chunks for item in chunk]
'''

RATINGS = '''"""Star ratings of products, from 1 to 5."""


class Ratings:
    def __init__(self):
        self._stars = {}

    def rate(self, product, stars):
        if not 1 <= stars <= 5:
            raise ValueError("a rating has 1 to 5 stars")
        self._stars.setdefault(product, []).append(stars)

    def average(self, product):
        stars = self._stars.get(product, [])
        return round(sum(stars) / len(stars), 1)

    def best(self):
        return max(self._stars, key=self.average)
'''

GREET = '''"""Greets somebody on the command line."""

import argparse


def greeting(name, evening=False):
    return f"Good {'evening' if evening else 'morning'}, {name}!"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--evening", action="store_true", help="it is after six")
    options = parser.parse_args()
    print(greeting(options.name, options.evening))


if __name__ == "__main__":
    main()
'''

BASKET = '''"""The basket of the shop."""

SHIPPING = 490
FREE_FROM = 5000


def _old_total(items):
    total = 0
    for item in items:
        total = total + item["price"]
    return total


def subtotal(items):
    """What the goods cost, in cents."""
    return sum(item["price"] * item["count"] for item in items)


def total(items):
    """Goods and shipping, in cents."""
    goods = subtotal(items)
    return goods if goods >= FREE_FROM or not goods else goods + SHIPPING
'''
DEAD = BASKET[BASKET.index("def _old_total") : BASKET.index("def subtotal")]

ONE_FILE = (
    Task(
        name="type_hints",
        kind="one_file",
        half="dev",
        request=(
            "Please add type hints to all functions in temperature.py: temperatures are floats, `readings` maps names "
            "of stations to temperatures, digits is an int."
        ),
        files={"temperature.py": TEMPERATURE},
        check=Holds(
            "from typing import get_args, get_type_hints as hints\nimport temperature as t",
            (
                "hints(t.to_fahrenheit) == {'celsius': float, 'return': float}",
                "hints(t.describe) == {'name': str, 'celsius': float, 'digits': int, 'return': str}",
                "set(hints(t.warmest)) == {'readings', 'return'} and hints(t.warmest)['return'] is str",
                "get_args(hints(t.warmest)['readings']) == (str, float)",
                "t.describe('Oslo', 10) == 'Oslo: 10.0 C (50.0 F)' and t.warmest({'a': 1, 'b': 2}) == 'b'",
                "raises(ValueError, t.to_fahrenheit, -300) and 'highest' in t.warmest.__doc__",
            ),
        ),
        changes=True,
        solution={"temperature.py": TYPED},
    ),
    Task(
        name="slug_separator",
        kind="one_file",
        half="held_out",
        request=(
            "slugify in slug.py always puts a dash between the words. Give it a second, optional parameter `separator` "
            'for what stands there instead; the default stays "-".'
        ),
        files={"slug.py": SLUG},
        check=Holds(
            "from slug import plain, slugify",
            (
                "slugify('Größe & Gewicht') == 'groesse-gewicht'",
                "slugify('Größe & Gewicht', '_') == 'groesse_gewicht'",
                "slugify('Ein, zwei', separator='') == 'einzwei' and slugify('', separator='+') == ''",
                "plain('Été') == 'ete'",
            ),
        ),
        changes=True,
        solution={
            "slug.py": replace_once(SLUG, "slugify(title)", 'slugify(title, separator="-")').replace(
                '"-".join', "separator.join"
            )
        },
    ),
    Task(
        name="upload_limit",
        kind="one_file",
        half="dev",
        request="Users may upload files of up to 20 MB from now on, not 5. The limit is in upload.py.",
        files={"upload.py": UPLOAD},
        check=Holds(
            "import upload\nMB = 1024 * 1024",
            (
                "upload.MAX_FILE_MB == 20 and upload.MAX_FILE_BYTES == 20 * MB",
                "upload.MAX_FILES == 5",
                "upload.problem('a.png', 20 * MB, 4) is None",
                "upload.problem('a.png', 20 * MB + 1, 0) == 'larger than 20 MB'",
                "upload.problem('a.png', 1, 5) == 'more than 5 files'",
                "upload.problem('a.exe', 1, 0) == 'unknown type'",
            ),
        ),
        changes=True,
        solution={"upload.py": replace_once(UPLOAD, "MAX_FILE_MB = 5", "MAX_FILE_MB = 20")},
    ),
    Task(
        name="rename_calc",
        kind="one_file",
        half="held_out",
        request="The name calc in invoice.py says nothing. Rename the function to line_total, everywhere in the file.",
        files={"invoice.py": INVOICE, "VERSION": "3.2\n"},
        check=Every(
            (
                Holds(
                    "import io, contextlib, re\nfrom decimal import Decimal\nimport invoice\n"
                    "def printed(lines):\n"
                    "    with contextlib.redirect_stdout(io.StringIO()) as out:\n"
                    "        invoice.print_invoice(lines)\n"
                    "    return out.getvalue()\n",
                    (
                        "not hasattr(invoice, 'calc') and not re.search(r'\\bcalc\\b', read('invoice.py'))",
                        "invoice.line_total(3, '1.50') == Decimal('4.50')",
                        "invoice.net([(2, '1.00'), (1, '0.50')]) == Decimal('2.50')",
                        "invoice.gross([(1, '100')]) == Decimal('119.00')",
                        "printed([(2, '1.25')]) == '1. 2 x 1.25 = 2.50\\nnet 2.50\\n'",
                    ),
                ),
                Keeps({"VERSION": "3.2\n"}),
            )
        ),
        changes=True,
        solution={"invoice.py": INVOICE.replace("calc(", "line_total(")},
    ),
    Task(
        name="chunked_docstring",
        kind="one_file",
        half="dev",
        request=(
            "chunked in batches.py has no docstring. Write one that says what the function yields, what `size` means "
            "and when it raises a ValueError. Leave the code as it is."
        ),
        files={"batches.py": BATCHES},
        check=Holds(
            "import ast\nimport batches\n"
            "def without_docstring(name):\n"
            "    tree = ast.parse(read('batches.py'))\n"
            "    found = next(node for node in tree.body if getattr(node, 'name', '') == name)\n"
            "    found.body = found.body[1:] if ast.get_docstring(found) else found.body\n"
            "    return ast.unparse(found)\n"
            "OLD = '''def chunked(items, size):\n"
            "    if size < 1:\n"
            "        raise ValueError('size must be at least 1')\n"
            "    iterator = iter(items)\n"
            "    while (chunk := list(islice(iterator, size))):\n"
            "        yield chunk'''\n",
            (
                "'size' in batches.chunked.__doc__ and 'ValueError' in batches.chunked.__doc__",
                "len(batches.chunked.__doc__.split()) >= 8",
                "without_docstring('chunked') == OLD",
                "list(batches.chunked('abcde', 2)) == [['a', 'b'], ['c', 'd'], ['e']]",
                "batches.flatten([[1], [2, 3]]) == [1, 2, 3]",
                "batches.flatten.__doc__ == 'The items of all chunks, one after the other.'",
            ),
        ),
        changes=True,
        solution={
            "batches.py": replace_once(
                BATCHES,
                "(items, size):\n",
                '(items, size):\n    """Yield lists of up to `size` items; a size below 1 raises a ValueError."""\n',
            )
        },
    ),
    Task(
        name="no_ratings",
        kind="one_file",
        half="held_out",
        request=(
            "Ratings.average in ratings.py crashes for a product that nobody has rated. It should return 0.0 in that "
            "case."
        ),
        files={"ratings.py": RATINGS},
        check=Holds(
            "from ratings import Ratings\nr = Ratings()\nr.rate('tea', 4)\nr.rate('tea', 5)\nr.rate('jam', 2)",
            (
                "r.average('salt') == 0.0 and Ratings().average('tea') == 0.0",
                "r.average('tea') == 4.5 and r.average('jam') == 2.0",
                "r.best() == 'tea'",
                "raises(ValueError, r.rate, 'tea', 6) and raises(ValueError, r.rate, 'tea', 0)",
            ),
        ),
        changes=True,
        solution={
            "ratings.py": replace_once(
                RATINGS, "round(sum(stars) / len(stars), 1)", "round(sum(stars) / len(stars), 1) if stars else 0.0"
            )
        },
    ),
    Task(
        name="shout_flag",
        kind="one_file",
        half="dev",
        request=(
            "Add an option --shout to greet.py. With it the whole greeting is printed in capital letters, as in "
            "`python greet.py Ann --shout` -> GOOD MORNING, ANN!"
        ),
        files={"greet.py": GREET},
        check=Holds(
            "import greet",
            (
                "run('greet.py', 'Ann', '--shout') == (0, 'GOOD MORNING, ANN!\\n')",
                "run('greet.py', '--shout', '--evening', 'Bob') == (0, 'GOOD EVENING, BOB!\\n')",
                "run('greet.py', 'Ann') == (0, 'Good morning, Ann!\\n')",
                "run('greet.py', 'Ann', '--evening') == (0, 'Good evening, Ann!\\n')",
                "greet.greeting('Eve', True) == 'Good evening, Eve!'",
            ),
        ),
        changes=True,
        solution={
            "greet.py": replace_once(
                replace_once(
                    GREET,
                    "    options = ",
                    '    parser.add_argument("--shout", action="store_true", help="in capitals")\n    options = ',
                ),
                "    print(greeting(options.name, options.evening))\n",
                "    text = greeting(options.name, options.evening)\n"
                "    print(text.upper() if options.shout else text)\n",
            )
        },
    ),
    Task(
        name="dead_function",
        kind="one_file",
        half="held_out",
        request="Nobody calls _old_total in basket.py any more. Please delete that function.",
        files={"basket.py": BASKET},
        check=Holds(
            "import basket",
            (
                "'_old_total' not in read('basket.py')",
                "basket.subtotal([{'price': 100, 'count': 3}]) == 300",
                "basket.total([{'price': 100, 'count': 3}]) == 790 and basket.total([]) == 0",
                "basket.total([{'price': 2500, 'count': 2}]) == 5000",
                "basket.total.__doc__ == 'Goods and shipping, in cents.'",
            ),
        ),
        changes=True,
        solution={"basket.py": replace_once(BASKET, DEAD, "")},
    ),
)
