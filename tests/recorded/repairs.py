"""Small bugs of real-looking projects, in several languages."""

from tests.recorded.recorded_run import RecordedRun, Turn

CART = '''"""The cart of the shop. Prices are in cents."""

from dataclasses import dataclass, field


@dataclass
class Item:
    name: str
    price: int
    quantity: int = 1


@dataclass
class Cart:
    items: list[Item] = field(default_factory=list)

    def add(self, item: Item) -> None:
        self.items.append(item)

    def total(self) -> int:
        """What the whole cart costs, in cents."""
        return sum(item.price for item in self.items)
'''

PAGES = """export function pageCount(total, size) {
  return Math.floor(total / size);
}

export function pageOf(items, page, size) {
  const start = (page - 1) * size;
  return items.slice(start, start + size);
}
"""

LIMITER = """package limiter

import "sync"

// Limiter counts the requests of each client.
type Limiter struct {
	mu    sync.Mutex
	most  int
	count map[string]int
}

// New returns a limiter that allows `most` requests.
func New(most int) *Limiter {
	return &Limiter{most: most}
}

// Allow counts a request and says whether it is allowed.
func (l *Limiter) Allow(client string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.count[client]++
	return l.count[client] <= l.most
}
"""

STATS = """pub fn mean(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

pub fn sum_to(n: u64) -> u64 {
    (0..n).sum()
}
"""

QUERY = """-- Customers who can still log in.
SELECT id, email
FROM customers
WHERE deleted_at = NULL
ORDER BY email;
"""

CLEAN = """#!/bin/sh
# Removes the build folder that is given as the first argument.
set -eu
dir=$1
rm -rf $dir
mkdir $dir
"""

USER_CARD = """type User = { name: string; address?: { city: string } };

export function cityOf(user: User): string {
  return user.address.city ?? "unknown";
}
"""

ADDS = "def add(a, b):\n    return a + b\n"
ADD = {
    "calc.py": "def add(a, b):\n    return a - b\n",
    "names.py": 'def greet(name):\n    return f"Hello, {name}!"\n',
}

EDITED = ("read_file: ok", "edit_blocks: ok", "final_answer: ok")
REFUSED = ("edit_blocks: invalid_argument", "final_answer: cancelled")
"""The shortest run: the machine reads the file that the request names, and the first reply edits it."""

REPAIRS: tuple[RecordedRun, ...] = (
    RecordedRun(
        name="repair_python",
        story="The model writes the whole file instead of one method, and leaves out the docstring at its top. The"
        " machine takes over what changes, so the docstring stays.",
        files={"cart.py": CART},
        turns=(
            Turn(
                request="total in cart.py ignores the quantity of the items. Fix it.",
                steps=EDITED,
                message="Changed cart.py; not checked: evidence is off",
                answer="Changed cart.py.",
            ),
        ),
        changed={"cart.py": CART.replace("item.price for", "item.price * item.quantity for")},
    ),
    RecordedRun(
        name="repair_without_file_name",
        story="The request names no file. The machine reads those of the small workspace, with native calls offered;"
        " the model answers with a block, the form that its prompt shows.",
        files=ADD,
        settings={"protocol": "native", "edit_form": "blocks"},
        turns=(
            Turn(
                request="The add function is wrong: it subtracts. Find it and fix it.",
                steps=("read_file: ok", *EDITED),
                message="Changed calc.py",
            ),
        ),
        changed={"calc.py": ADDS},
    ),
    RecordedRun(
        name="repair_javascript",
        story="The request says what is wrong, and names no change.",
        files={"pages.js": PAGES},
        turns=(
            Turn(
                request="pageCount in pages.js gives 2 for 21 items and a size of 10, but it should give 3.",
                steps=EDITED,
                message="Changed pages.js",
            ),
        ),
        changed={"pages.js": PAGES.replace("Math.floor", "Math.ceil")},
    ),
    RecordedRun(
        name="repair_go",
        story="The model makes the map when it is first used, and not where the limiter is made.",
        files={"limiter.go": LIMITER},
        turns=(
            Turn(
                request="limiter.go panics at the first call of Allow: assignment to entry in nil map. Fix it.",
                steps=EDITED,
                message="Changed limiter.go",
            ),
        ),
        changed={
            "limiter.go": LIMITER.replace(
                "\tl.count[client]++\n",
                "\tif l.count == nil {\n\t\tl.count = make(map[string]int)\n\t}\n\tl.count[client]++\n",
            )
        },
    ),
    RecordedRun(
        name="repair_sql",
        story="The request says no more than that no row is found.",
        files={"customers.sql": QUERY},
        turns=(
            Turn(
                request="customers.sql finds no rows although there are customers. Fix it.",
                steps=EDITED,
                message="Changed customers.sql",
            ),
        ),
        changed={"customers.sql": QUERY.replace("= NULL", "IS NULL")},
    ),
    RecordedRun(
        name="repair_rust",
        story="The prompt asks for nothing but the functions that change, and the model answers so. In Rust a block is"
        " the whole file, so that a block without mean is refused, three times. The fourth block holds both.",
        files={"src/stats.rs": STATS},
        turns=(
            Turn(
                request="sum_to(3) in src/stats.rs returns 3 instead of 6. Please fix it.",
                steps=("read_file: ok", *REFUSED * 3, "edit_blocks: ok", "final_answer: ok"),
                message="Changed src/stats.rs; not checked",
            ),
        ),
        calls=4,
        changed={"src/stats.rs": STATS.replace("(0..n).sum()", "n * (n + 1) / 2")},
    ),
    RecordedRun(
        name="repair_shell",
        story="The model does not quote the variable. It refuses names with blanks, with a test that sh does not know.",
        files={"clean.sh": CLEAN},
        turns=(
            Turn(
                request="clean.sh breaks when the folder's name has blanks. Fix it.",
                steps=EDITED,
                message="Changed clean.sh; not checked",
            ),
        ),
        changed={
            "clean.sh": CLEAN.replace(
                "rm -rf",
                'if [[ "$dir" == *" "* ]]; then\n'
                '  echo "Error: Folder name cannot contain spaces."\n'
                "  exit 1\n"
                "fi\n"
                "rm -rf",
            )
        },
    ),
    RecordedRun(
        name="repair_typescript",
        story="An optional field is read with the operator that is made for it.",
        files={"userCard.ts": USER_CARD},
        turns=(
            Turn(
                request="cityOf in userCard.ts throws for a user without an address. Fix it.",
                steps=EDITED,
                message="Changed userCard.ts",
            ),
        ),
        changed={"userCard.ts": USER_CARD.replace("address.city", "address?.city")},
    ),
)

TEXTS = '''def shorten(text, width):
    """Cut a text to a width, with three dots at its end."""
    if len(text) <= width:
        return text
    return text[:width] + "..."
'''

TEXTS_TEST = """from texts import shorten


def test_short_text_stays():
    assert shorten("abc", 5) == "abc"


def test_long_text_is_cut():
    assert shorten("abcdefgh", 6) == "abc..."
"""

PYTEST_OUTPUT = """$ pytest -q
.F                                                                       [100%]
=================================== FAILURES ===================================
____________________________ test_long_text_is_cut _____________________________

    def test_long_text_is_cut():
>       assert shorten("abcdefgh", 6) == "abc..."
E       AssertionError: assert 'abcdef...' == 'abc...'
E
E         - abc...
E         + abcdef...
E         ?    +++

test_texts.py:9: AssertionError
=========================== short test summary info ============================
FAILED test_texts.py::test_long_text_is_cut - AssertionError: assert 'abcdef...
1 failed, 1 passed in 0.02s
"""

SEARCH = '''"""Binary search in sorted lists."""


def lower_bound(items, target):
    """The first index at which `target` could be inserted so that the list stays sorted.

    >>> lower_bound([1, 3, 3, 5], 3)
    1
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
'''

WRAP = '''def wrap(text, width):
    """Break a text into lines of at most `width` characters; longer words stay whole.

    >>> wrap("aaa bb cc", 5)
    ['aaa', 'bb cc']
    """
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
'''

CART_CHECK = """from cart import Cart, Item

cart = Cart([Item("tea", 500, quantity=3), Item("cup", 900)])
print(f"The total is {cart.total()}.")
raise SystemExit(cart.total() != 2400)
"""

TEXTS_CHECK = """from texts import shorten

short = shorten("abcdefgh", 6)
print(f"6 characters of abcdefgh: {short}")
raise SystemExit(short != "abc...")
"""

NOT_DONE = ("run_checks: cancelled", "final_answer: cancelled")
"""What the machine does not do after an edit that failed."""

CHECK_FAILED = ("run_checks: check_failed", "final_answer: cancelled")

CHECKED_REPAIRS: tuple[RecordedRun, ...] = (
    RecordedRun(
        name="failing_test_pasted",
        story="The output of a failing test is pasted. It names the test's file alone, so that is what the model is"
        " shown. It gives the file back three times and then changes what the test expects, to another wrong"
        " value. The outcome says that the tests were weakened.",
        files={"texts.py": TEXTS, "test_texts.py": TEXTS_TEST},
        turns=(
            Turn(
                request=f"Fix this:\n\n{PYTEST_OUTPUT}",
                steps=(
                    "read_file: ok",
                    *3 * ("edit_blocks: unchanged", "final_answer: cancelled"),
                    "edit_blocks: ok",
                    "final_answer: ok",
                ),
                message="Changed test_texts.py; tests weakened: test_texts.py (1 expectation changed); not checked",
            ),
        ),
        calls=4,
        changed={"test_texts.py": TEXTS_TEST.replace('"abc..."', '"abcd..."')},
        hidden=("Cut a text to a width",),
    ),
    RecordedRun(
        name="check_passes",
        story="The machine runs the check of the project after the edit, and the outcome says that it passes.",
        files={"cart.py": CART, "check.py": CART_CHECK},
        settings={"checks": ("python3 -B check.py",)},
        sandboxed=True,
        turns=(
            Turn(
                request="total in cart.py ignores the quantity of the items. Fix it.",
                steps=("read_file: ok", "edit_blocks: ok", "run_checks: ok", "final_answer: ok"),
                message="Changed cart.py; passed: python3 -B check.py.",
            ),
        ),
        changed={"cart.py": CART.replace("item.price for", "item.price * item.quantity for")},
    ),
    RecordedRun(
        name="check_that_fails",
        story="The second edit is made and leaves the bug. The check of the project fails, so after four tries it is"
        " taken back, and the run keeps it.",
        files={"texts.py": TEXTS, "check.py": TEXTS_CHECK},
        settings={"checks": ("python3 -B check.py",)},
        sandboxed=True,
        turns=(
            Turn(
                request="shorten in texts.py makes texts that are too long, so check.py fails. Fix it.",
                steps=(
                    "read_file: ok",
                    "read_file: ok",
                    "edit_blocks: unchanged",
                    *NOT_DONE,
                    "edit_blocks: ok",
                    *CHECK_FAILED,
                    "edit_blocks: unchanged",
                    *CHECK_FAILED,
                    "edit_blocks: unchanged",
                    *CHECK_FAILED,
                ),
                kind="SYSTEM_ERROR",
                reason="checks_failed",
                message="The work did not pass its checks after 4 tries. The files are as they were;",
            ),
        ),
        calls=4,
        in_requests=("6 characters of abcdefgh: abcdef...",),
    ),
    RecordedRun(
        name="example_fails_at_first",
        story="The first edit leaves the bug. The examples of the docstring fail on it, so it is not made and the model"
        " is asked to write the function anew, without its old body. The second edit passes.",
        files={"search.py": SEARCH},
        settings={"evidence": True},
        sandboxed=True,
        turns=(
            Turn(
                request="lower_bound in search.py is wrong for targets beyond the last item. Fix it.",
                steps=(
                    "read_file: ok",
                    "run_checks: check_failed",
                    "edit_blocks: check_failed",
                    *NOT_DONE,
                    "edit_blocks: ok",
                    "run_checks: ok",
                    "final_answer: ok",
                ),
                message="Changed search.py; passed: 2 examples of search.py.",
            ),
        ),
        calls=2,
        changed={
            "search.py": SEARCH.replace("low, high", "left, right")
            .replace("while low < high", "while left <= right")
            .replace("middle = (low + high)", "mid = (left + right)")
            .replace("[middle]", "[mid]")
            .replace("low = middle + 1", "left = mid + 1")
            .replace("high = middle", "right = mid - 1")
            .replace("return low", "return left")
        },
        in_requests=("lower_bound([1, 3, 3, 5], 9) gives 3, but must give 4.", "Write the function lower_bound."),
    ),
    RecordedRun(
        name="checks_never_pass",
        story="The first reply gives the file back as it is, the other two do not pass the example of the docstring."
        " The run ends after three tries, and the file is as it was.",
        files={"wrap.py": WRAP},
        settings={"evidence": True, "max_failed_tries": 3},
        sandboxed=True,
        turns=(
            Turn(
                request="wrap in wrap.py makes lines that are too long. Fix it.",
                steps=(
                    "read_file: ok",
                    "run_checks: check_failed",
                    "edit_blocks: unchanged",
                    *NOT_DONE,
                    "edit_blocks: check_failed",
                    *NOT_DONE,
                    "edit_blocks: check_failed",
                    *NOT_DONE,
                ),
                kind="SYSTEM_ERROR",
                reason="checks_failed",
                message="The work did not pass its checks after 3 tries.",
            ),
        ),
        calls=3,
        in_requests=("wrap(\"aaa bb cc\", 5) gives ['aaa bb', 'cc'], but must give ['aaa', 'bb cc'].",),
    ),
)
