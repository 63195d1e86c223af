"""Five requests about files of 6 to 100 kB: modules of the standard library with an additional function in the middle.

The functions are new, so a model must read them.
"""

import argparse
import configparser
import getpass
import shlex
import textwrap
from pathlib import Path
from types import ModuleType

from benchmarks.everyday.tasks import edited, request
from benchmarks.real_model.checking import Answers, Holds, Keeps


def with_function(module: ModuleType, function: str) -> str:
    """Return the text of a module with a function before the first class or function of its second half."""
    text = Path(str(module.__file__)).read_text("utf-8")
    middle = len(text) // 2
    positions = [text.find(f"\n{keyword} ", middle) for keyword in ("class", "def")]
    position = min(position for position in positions if position >= 0) + 1
    return f"{text[:position]}{function.strip()}\n\n\n{text[position:]}"


PARCEL = '''
def parcel_zone(weight, island):
    """The zone that decides what a parcel costs."""
    if weight > 31500:
        raise ValueError("too heavy for a parcel")
    if island:
        return 4
    return 1 if weight < 2000 else 2
'''

LATE_FEE = '''
def late_fee(days, amount):
    """The fee for a bill that is paid too late: one percent a day, for at most ten days.

    >>> late_fee(3, 200)
    6.0
    >>> late_fee(30, 200)
    20.0
    """
    return amount * days / 100
'''

INITIALS = '''
def badge_text(name):
    """What stands on the badge of a guest.

    >>> badge_text("Ada Lovelace")
    'A. Lovelace'
    """
    first, last = name.split(" ")
    return f"{first[0]} {last}"
'''

SEATS = '''
def seats_left(rows, taken):
    """How many seats are left, if the last row is kept for the crew."""
    return (rows - 1) * 6 - len(taken)
'''


ROOM = '''
def room_price(nights, guests):
    """The price of a room in euros."""
    price = 80 * nights
    if guests > 2:
        price += 25 * nights
    return price
'''


def project(path: str, text: str) -> dict[str, str]:
    """Return a project with two small files and this file."""
    return {
        "README.md": "# orders\n\nInternal tools for orders, bills and guests.\n",
        "greeting.py": 'def greeting(name):\n    return f"Hello {name}"\n',
        path: text,
    }


SEATS_FILES = project("seats.py", with_function(textwrap, SEATS))
LATE_FILES = project("bills.py", with_function(configparser, LATE_FEE))
PARCEL_FILES = project("parcels.py", with_function(argparse, PARCEL))
BADGE_FILES = project("guests.py", with_function(shlex, INITIALS))
ROOM_FILES = project("rooms.py", with_function(getpass, ROOM))

LARGE_FILES = (
    request(
        "large_price",
        "In rooms.py, what does room_price charge a night for the third guest?",
        ROOM_FILES,
        Answers((r"\b25\b",)),
    ),
    request(
        "large_question",
        "How does seats.py compute seats_left, and which row is not counted?",
        SEATS_FILES,
        Answers((r"\b6\b|six", r"last row|crew", r"(?s)\A(?!.*(wrap|indent))")),
    ),
    request(
        "large_explain",
        "What does parcel_zone in parcels.py return for an island?",
        PARCEL_FILES,
        Answers((r"\b4\b|four",)),
    ),
    request(
        "large_fix",
        "late_fee in bills.py is wrong: late_fee(30, 200) must be 20.0, as at most ten days count. Please fix it.",
        LATE_FILES,
        Holds(
            "from bills import late_fee",
            ("late_fee(3, 200) == 6.0", "late_fee(30, 200) == 20.0", "late_fee(10, 50) == 5.0"),
        ),
        Keeps({path: text for path, text in LATE_FILES.items() if path != "bills.py"}),
        Holds("import bills", ("bills.ConfigParser().read_string('[a]\\nb=1') is None",)),
        solution=edited(LATE_FILES, "bills.py", ("return amount * days / 100", "return amount * min(days, 10) / 100")),
    ),
    request(
        "large_doctest",
        "badge_text in guests.py should give 'A. Lovelace' for 'Ada Lovelace', but it gives 'A Lovelace'.",
        BADGE_FILES,
        Holds(
            "from guests import badge_text, split",
            (
                "badge_text('Ada Lovelace') == 'A. Lovelace'",
                "badge_text('Alan Turing') == 'A. Turing'",
                "split('a b') == ['a', 'b']",
            ),
        ),
        Keeps({path: text for path, text in BADGE_FILES.items() if path != "guests.py"}),
        solution=edited(BADGE_FILES, "guests.py", ("{first[0]} {last}", "{first[0]}. {last}")),
    ),
)
"""Requests that name files of 6, 14, 20, 55 and 100 kB."""
