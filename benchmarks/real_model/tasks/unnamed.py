"""Requests that name no file: what is wrong is said as the user sees it."""

from benchmarks.real_model.checking import Every, Holds, Keeps
from benchmarks.real_model.task import Task, replace_once

TAX = '''"""Value added tax, in cents."""

RATES = {"book": 7, "game": 19}


def tax(kind, cents):
    """The tax on a net price, rounded to whole cents."""
    return int(cents * RATES[kind] / 100)
'''
TILL = '''from tax import tax


def gross(kind, cents):
    return cents + tax(kind, cents)


def total(items):
    """What all items cost with tax; an item is a pair of kind and net price."""
    return sum(gross(kind, cents) for kind, cents in items)
'''
TILL_TEST = """import unittest

from till import total


class TillTest(unittest.TestCase):
    def test_one_book(self):
        self.assertEqual(total([("book", 1099)]), 1176)

    def test_books_and_games(self):
        self.assertEqual(total([("book", 500), ("game", 1999)]), 2914)


if __name__ == "__main__":
    unittest.main()
"""

CATALOG = """PRODUCTS = [
    {"name": "Apple juice", "price": 199},
    {"name": "Rye bread", "price": 349},
    {"name": "Green apples", "price": 279},
]


def cheapest(products):
    return min(products, key=lambda product: product["price"])
"""
FINDER = '''def matches(product, word):
    return word in product["name"]


def find(products, word):
    """The products whose name contains the word."""
    return [product for product in products if matches(product, word)]
'''
SHOP = """import sys

from catalog import PRODUCTS
from finder import find


def main():
    for product in find(PRODUCTS, sys.argv[1]):
        print(product["name"])


if __name__ == "__main__":
    main()
"""

READER = '''"""Reads log lines such as "ERROR disk full"."""


def entries(lines):
    """Pairs of level and message; empty lines are skipped."""
    for line in lines:
        if line.strip():
            level, _, message = line.strip().partition(" ")
            yield level, message
'''
FIGURES = '''def counts(entries):
    result = {}
    for level, _ in entries:
        result[level] = result.get(level, 0) + 1
    return result


def error_rate(entries):
    """The share of errors among all entries, from 0 to 1."""
    found = counts(entries)
    return found.get("ERROR", 0) / sum(found.values())
'''
WATCH = """import sys

from figures import error_rate
from reader import entries


def main():
    with open(sys.argv[1]) as file:
        print(f"{error_rate(entries(file)):.0%} errors")


if __name__ == "__main__":
    main()
"""
LOG = "ERROR disk full\nINFO retry\n\nINFO done\nINFO bye\n"

DAYS = """NAMES = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]


def day_name(date):
    return NAMES[date.isoweekday() % 7]


def is_weekend(date):
    return date.weekday() >= 5
"""
LETTER = """from days import day_name, is_weekend


def opening(date, name):
    wish = "Have a nice weekend" if is_weekend(date) else f"Happy {day_name(date)}"
    return f"{wish}, {name}!"
"""

UNNAMED = (
    Task(
        name="totals_rounded",
        kind="unnamed",
        half="held_out",
        request="Our tests fail because the totals are rounded wrong, one cent too low. Please fix the program.",
        files={"tax.py": TAX, "till.py": TILL, "test_till.py": TILL_TEST, "README.md": "# till\n"},
        check=Every(
            (
                Keeps({"test_till.py": TILL_TEST}),
                Holds(
                    "from tax import tax\nfrom till import gross, total",
                    (
                        "run('-m', 'unittest', '-q', 'test_till')[0] == 0",
                        "tax('book', 1099) == 77 and tax('game', 1999) == 380",
                        "tax('book', 1001) == 70 and tax('game', 100) == 19 and tax('book', 0) == 0",
                        "gross('game', 1001) == 1191 and total([]) == 0",
                        "total([('book', 1099), ('game', 1003)]) == 2370",
                    ),
                ),
            )
        ),
        changes=True,
        solution={"tax.py": replace_once(TAX, "int(cents", "round(cents")},
    ),
    Task(
        name="search_case",
        kind="unnamed",
        half="dev",
        request=(
            'Customers who search for "apple" find the green apples but not the Apple juice. The search should not '
            "care about upper and lower case."
        ),
        files={"catalog.py": CATALOG, "finder.py": FINDER, "shop.py": SHOP},
        check=Every(
            (
                Keeps({"catalog.py": CATALOG}),
                Holds(
                    "from catalog import PRODUCTS\nfrom finder import find, matches",
                    (
                        "run('shop.py', 'apple') == (0, 'Apple juice\\nGreen apples\\n')",
                        "run('shop.py', 'BREAD') == (0, 'Rye bread\\n') and run('shop.py', 'wine') == (0, '')",
                        "[p['price'] for p in find(PRODUCTS, 'APPLE')] == [199, 279]",
                        "find(PRODUCTS, 'Rye')[0] is PRODUCTS[1]",
                    ),
                ),
            )
        ),
        changes=True,
        solution={
            "finder.py": replace_once(FINDER, 'word in product["name"]', 'word.lower() in product["name"].lower()')
        },
    ),
    Task(
        name="empty_log",
        kind="unnamed",
        half="held_out",
        request="With an empty log file our program dies with a ZeroDivisionError. It should say 0% errors then.",
        files={"reader.py": READER, "figures.py": FIGURES, "watch.py": WATCH, "today.log": LOG, "old.log": ""},
        check=Every(
            (
                Keeps({"today.log": LOG, "old.log": ""}),
                Holds(
                    "from figures import counts",
                    (
                        "run('watch.py', 'old.log') == (0, '0% errors\\n')",
                        "run('watch.py', 'today.log') == (0, '25% errors\\n')",
                        "counts([('A', ''), ('B', ''), ('A', '')]) == {'A': 2, 'B': 1} and counts([]) == {}",
                    ),
                ),
            )
        ),
        changes=True,
        solution={
            "figures.py": replace_once(FIGURES, "/ sum(found.values())", "/ sum(found.values()) if found else 0.0")
        },
    ),
    Task(
        name="weekday_names",
        kind="unnamed",
        half="dev",
        request='Our letters say "Happy Tuesday" on a Monday: all days are one too late. Please fix that.',
        files={"days.py": DAYS, "letter.py": LETTER},
        check=Holds(
            "from datetime import date\nfrom days import day_name, is_weekend\nfrom letter import opening",
            (
                "opening(date(2024, 5, 6), 'Ann') == 'Happy Monday, Ann!'",
                "[day_name(date(2024, 5, 6 + n))[:2] for n in range(7)] == ['Mo', 'Tu', 'We', 'Th', 'Fr', 'Sa', 'Su']",
                "opening(date(2024, 5, 10), 'Bo') == 'Happy Friday, Bo!'",
                "opening(date(2024, 5, 11), 'Bo') == 'Have a nice weekend, Bo!'",
                "is_weekend(date(2024, 5, 12)) and not is_weekend(date(2024, 5, 13))",
            ),
        ),
        changes=True,
        solution={"days.py": replace_once(DAYS, "date.isoweekday() % 7", "date.weekday()")},
    ),
)
