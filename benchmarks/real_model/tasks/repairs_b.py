"""Bug repairs, second part."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Task, replace_once

SEARCH = r'''"""Binary search in sorted lists."""


def lower_bound(items, target):
    """The first index at which `target` could be inserted so that the list stays sorted.

    >>> lower_bound([1, 3, 3, 5], 3)
    1
    >>> lower_bound([1, 3, 3, 5], 0)
    0
    >>> lower_bound([1, 3, 3, 5], 9)
    4
    """
    low, high = 0, len(items) - 1
    while low < high:
        middle = (low + high) // 2
        if items[middle] < target:
            low = middle + 1
        else:
            high = middle
    return low


def index_of(items, target):
    """Where `target` stands, or -1.

    >>> index_of([2, 4, 6], 4)
    1
    >>> index_of([2, 4, 6], 5)
    -1
    """
    index = lower_bound(items, target)
    if index < len(items) and items[index] == target:
        return index
    return -1
'''

SALES = r'''"""Summaries of the sales list, a CSV text with the columns region, units and price."""

import csv


def read_sales(lines):
    """The rows as dictionaries, with numbers; rows without units are left out."""
    rows = []
    for row in csv.DictReader(lines):
        if not row["units"]:
            continue
        rows.append({"region": row["region"], "units": int(row["units"]), "price": float(row["price"])})
    return rows


def totals_by_region(lines):
    """Revenue of each region.

    >>> totals_by_region(["region,units,price", "north,2,3.50", "south,1,2.00", "north,1,1.00"])
    {'north': 8.0, 'south': 2.0}
    """
    totals = {}
    for row in read_sales(lines):
        amount = row["units"] * row["price"]
        totals.setdefault(row["region"], 0.0)
        totals[row["region"]] = amount
    return totals


def best_region(lines):
    """The region with the highest revenue."""
    totals = totals_by_region(lines)
    return max(totals, key=totals.get)


def main():
    with open("sales.csv", newline="") as file:
        for region, total in sorted(totals_by_region(file).items()):
            print(f"{region:10}{total:10.2f}")


if __name__ == "__main__":
    main()
'''

SALES_CSV = """region,units,price
north,2,3.50
south,10,1.25
north,4,2.00
east,,9.99
south,1,7.50
"""

DURATION = r'''"""Durations as people write them: 1h 2m 5s."""

import re

UNITS = {"h": 3600, "m": 60, "s": 1}
PART = re.compile(r"\s*(\d+)\s*([hms])")


def parse_duration(text):
    """Seconds in a text.

    >>> parse_duration("1h 2m 5s")
    3725
    >>> parse_duration("90m")
    5400
    """
    total = position = 0
    while position < len(text.rstrip()):
        part = PART.match(text, position)
        if part is None:
            raise ValueError(f"not a duration: {text!r}")
        total += int(part[1]) * UNITS[part[2]]
        position = part.end()
    return total


def format_duration(seconds):
    """The same, the other way round; parts that are zero are left out.

    >>> format_duration(45)
    '45s'
    >>> format_duration(3725)
    '1h 2m 5s'
    """
    hours, rest = divmod(seconds, 3600)
    minutes, rest = divmod(seconds, 60)
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else "", f"{rest}s" if rest else ""]
    return " ".join(part for part in parts if part) or "0s"
'''

ROMAN = r"""VALUES = {"I": 1, "V": 5, "X": 10, "L": 50, "C": 100, "D": 500, "M": 1000}

SYMBOLS = [
    (1000, "M"), (900, "CM"), (500, "D"), (400, "CD"),
    (100, "C"), (90, "XC"), (50, "L"), (40, "XL"),
    (10, "X"), (9, "IX"), (5, "V"), (4, "IV"), (1, "I"),
]


def to_roman(number):
    if not 0 < number < 4000:
        raise ValueError(f"{number} has no roman numeral")
    text = ""
    for value, symbol in SYMBOLS:
        while number >= value:
            text += symbol
            number -= value
    return text


def from_roman(text):
    values = [VALUES[letter] for letter in text.upper()]
    total = 0
    for value, following in zip(values, values[1:] + [0]):
        total += -value if value <= following else value
    return total


def is_roman(text):
    try:
        return to_roman(from_roman(text)) == text.upper()
    except (KeyError, ValueError):
        return False
"""

WRAP = r'''def wrap(text, width):
    """Break a text into lines of at most `width` characters; longer words stay whole."""
    lines = []
    current = ""
    for word in text.split():
        if not current:
            current = word
        elif len(current) + len(word) <= width:
            current = current + " " + word
        else:
            lines.append(current)
            current = word
    if current:
        lines.append(current)
    return lines


def indent(lines, prefix="  "):
    return [prefix + line if line else line for line in lines]


def boxed(text, width):
    """A frame of stars around the wrapped text."""
    lines = wrap(text, width - 4)
    edge = "*" * width
    body = [f"* {line.ljust(width - 4)} *" for line in lines]
    return "\n".join([edge, *body, edge])
'''

REPAIRS_B = (
    Task(
        name="lower_bound",
        kind="repair",
        half="dev",
        request=(
            "search.py has a bug: for a target that is larger than everything in the list, lower_bound does not return "
            "the position behind the last item."
        ),
        files={"search.py": SEARCH},
        check=Holds(
            "from bisect import bisect_left\nfrom search import index_of, lower_bound\nEVEN = [0, 2, 4, 6, 8, 10]",
            (
                "lower_bound([1, 3, 3, 5], 9) == 4",
                "lower_bound([], 1) == 0 and lower_bound([1], 2) == 1",
                "all(lower_bound(EVEN[:n], x) == bisect_left(EVEN[:n], x) for n in range(7) for x in range(-1, 13))",
                "index_of([2, 4, 6], 6) == 2 and index_of([2, 4, 6], 7) == -1",
            ),
        ),
        changes=True,
        solution={"search.py": replace_once(SEARCH, "len(items) - 1", "len(items)")},
    ),
    Task(
        name="sales_totals",
        kind="repair",
        half="held_out",
        request=(
            "The totals per region that sales.py prints are too low, it looks as if only the last sale of each region "
            "is counted. Please fix this."
        ),
        files={"sales.py": SALES, "sales.csv": SALES_CSV},
        check=Every(
            (
                Holds(
                    "from sales import best_region, totals_by_region\n"
                    "LINES = ['region,units,price', 'n,2,3.5', 's,10,1.25', 'n,4,2', 'e,,9', 's,1,7.5']",
                    (
                        "totals_by_region(LINES) == {'n': 15.0, 's': 20.0}",
                        "totals_by_region(LINES[:1]) == {}",
                        "best_region(['region,units,price', 'a,1,3', 'b,1,4', 'a,1,3']) == 'a'",
                        "run('sales.py')[1].split() == ['north', '15.00', 'south', '20.00']",
                    ),
                ),
                Keeps({"sales.csv": SALES_CSV}),
            )
        ),
        changes=True,
        solution={"sales.py": replace_once(SALES, '["region"]] = amount', '["region"]] += amount')},
    ),
    Task(
        name="format_duration",
        kind="repair",
        half="dev",
        request="duration.py shows durations of more than an hour with far too many minutes. Repair format_duration.",
        files={"duration.py": DURATION},
        check=Holds(
            "from duration import format_duration, parse_duration",
            (
                "format_duration(3725) == '1h 2m 5s'",
                "format_duration(7200) == '2h' and format_duration(7260) == '2h 1m'",
                "format_duration(0) == '0s' and format_duration(59) == '59s' and format_duration(60) == '1m'",
                "all(parse_duration(format_duration(n)) == n for n in range(0, 20000, 7))",
                "raises(ValueError, parse_duration, '5 parsecs')",
            ),
        ),
        changes=True,
        solution={"duration.py": replace_once(DURATION, "divmod(seconds, 60)", "divmod(rest, 60)")},
    ),
    Task(
        name="roman_numerals",
        kind="repair",
        half="held_out",
        request='There is something wrong in roman.py: from_roman("III") returns -1, it should be 3.',
        files={"roman.py": ROMAN},
        check=Holds(
            "from roman import from_roman, is_roman, to_roman",
            (
                "from_roman('III') == 3",
                "from_roman('xxii') == 22 and from_roman('MCMXCIV') == 1994",
                "all(from_roman(to_roman(number)) == number for number in range(1, 4000))",
                "is_roman('XIV') and not is_roman('IIII') and not is_roman('ABC')",
                "raises(ValueError, to_roman, 0)",
            ),
        ),
        changes=True,
        solution={"roman.py": replace_once(ROMAN, "value <= following", "value < following")},
    ),
    Task(
        name="text_wrap",
        kind="repair",
        half="dev",
        request=(
            'In wrap.py the lines get too long: wrap("aaa bb cc", 5) gives ["aaa bb", "cc"], expected ["aaa", "bb cc"].'
        ),
        files={"wrap.py": WRAP},
        check=Holds(
            "from wrap import boxed, indent, wrap",
            (
                "wrap('aaa bb cc', 5) == ['aaa', 'bb cc']",
                "wrap('one two three four', 9) == ['one two', 'three', 'four']",
                "wrap('one two three four', 10) == ['one two', 'three four']",
                "wrap('incomprehensible is long', 4) == ['incomprehensible', 'is', 'long']",
                "wrap('', 10) == [] and wrap('a b c d', 3) == ['a b', 'c d']",
                "boxed('ab cd e', 9) == '*********\\n* ab cd *\\n* e     *\\n*********'",
                "indent(['a', '']) == ['  a', '']",
            ),
        ),
        changes=True,
        solution={
            "wrap.py": replace_once(WRAP, "len(current) + len(word) <= width", "len(current) + 1 + len(word) <= width")
        },
    ),
)
