"""Two typical small projects: a shopping list in Python and a todo list in JavaScript."""

SHOP = {
    ".gitignore": ".venv/\n__pycache__/\n.pytest_cache/\n",
    "README.md": """# shop

`shop` adds up a shopping list. The list is a CSV file with a product, its price and how many of it you want on each
line:

    apple,0.50,4
    bread,3.20,1

Run it with

    shop list.csv --discount 10

It prints the total in euros. `--discount` takes percent off the whole list; without it you pay the full price.
A price has at most two decimals, and a quantity is at least 1: anything else is an error, and nothing is printed.

## From Python

```python
from shop.cart import Cart, calc

cart = Cart()
cart.add("apple", 50, quantity=4)
print(calc(cart))
```

Prices are in cents there, so that sums are exact.

## Development

    python -m venv .venv
    .venv/bin/pip install pytest
    .venv/bin/pytest
""",
    "pyproject.toml": """[project]
name = "shop"
version = "0.3.0"
description = "Adds up a shopping list."
requires-python = ">=3.10"

[project.scripts]
shop = "shop.cli:main"

[project.optional-dependencies]
dev = ["pytest"]

[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"

[tool.pytest.ini_options]
pythonpath = ["src"]
testpaths = ["tests"]
""",
    "src/shop/__init__.py": "",
    "src/shop/cart.py": '''"""The shopping cart."""

from dataclasses import dataclass, field


@dataclass
class Line:
    name: str
    price: int  # cents
    quantity: int = 1


@dataclass
class Cart:
    lines: list[Line] = field(default_factory=list)
    discount: int = 0  # percent

    def add(self, name, price, quantity=1):
        """Put a product into the cart. The same product again adds to its quantity."""
        if quantity < 1:
            raise ValueError(f"quantity must be at least 1, not {quantity}")
        for line in self.lines:
            if line.name == name:
                line.quantity += quantity
                return
        self.lines.append(Line(name, price, quantity))

    def remove(self, name):
        """Take a product out of the cart."""
        self.lines = [line for line in self.lines if line.name != name]


def calc(cart):
    """What the cart costs, in cents."""
    total = sum(line.price * line.quantity for line in cart.lines)
    return round(total * (100 - cart.discount) / 100)
''',
    "src/shop/prices.py": '''"""Prices as people write them."""


def parse_price(text):
    """Cents in a text such as 3, 3.5 or 12.50."""
    whole, _, fraction = text.strip().partition(".")
    if not whole.isdigit() or len(fraction) > 2 or (fraction and not fraction.isdigit()):
        raise ValueError(f"not a price: {text!r}")
    return int(whole) * 100 + int(fraction.ljust(2, "0"))


def format_price(cents):
    return f"{cents // 100}.{cents % 100:02}"
''',
    "src/shop/text.py": '''"""Small things with text."""


def shorten(text, width):
    """The text in at most `width` characters. One that is too long is cut and ends in three dots."""
    if len(text) <= width:
        return text
    return text[: width - 3] + "..."
''',
    "src/shop/cli.py": '''"""The command line."""

import argparse
import csv

from shop.cart import Cart, calc
from shop.prices import format_price, parse_price


def read_cart(path):
    cart = Cart()
    with open(path, newline="") as file:
        for name, price, quantity in csv.reader(file):
            cart.add(name, parse_price(price), int(quantity))
    return cart


def main():
    parser = argparse.ArgumentParser(prog="shop", description="Add up a shopping list.")
    parser.add_argument("file", help="the shopping list, a CSV file")
    parser.add_argument("--discount", type=int, default=0, help="percent off")
    args = parser.parse_args()

    cart = read_cart(args.file)
    cart.discount = args.discount
    print(f"Total: {format_price(calc(cart))} EUR")


if __name__ == "__main__":
    main()
''',
    "tests/test_cart.py": """import pytest

from shop.cart import Cart, calc


def test_empty_cart():
    assert calc(Cart()) == 0


def test_total():
    cart = Cart()
    cart.add("apple", 50, quantity=4)
    cart.add("bread", 320)
    assert calc(cart) == 520


def test_same_product_twice():
    cart = Cart()
    cart.add("apple", 50)
    cart.add("apple", 50, quantity=2)
    assert len(cart.lines) == 1
    assert cart.lines[0].quantity == 3


def test_quantity():
    with pytest.raises(ValueError):
        Cart().add("apple", 50, quantity=0)


def test_remove():
    cart = Cart()
    cart.add("apple", 50)
    cart.remove("apple")
    assert cart.lines == []
""",
    "tests/test_text.py": """from shop.text import shorten


def test_short_text_stays():
    assert shorten("apple", 10) == "apple"


def test_long_text_is_cut():
    assert shorten("a very long product name", 10) == "a very ..."
""",
}

TODO = {
    ".gitignore": "node_modules/\ntodos.json\n",
    "README.md": """# todo

A list of todos on the command line.

    node src/cli.js add 30 write the report
    node src/cli.js list
    node src/cli.js done 1

The number after `add` is how many minutes it will take. The todos are kept in `todos.json` in the current folder.
`npm test` runs the tests.
""",
    "package.json": """{
  "name": "todo",
  "version": "1.2.0",
  "type": "module",
  "bin": { "todo": "src/cli.js" },
  "scripts": { "test": "node --test" }
}
""",
    "src/todo.js": """/** Adds a todo and returns the new list. */
export function addTodo(todos, title, minutes) {
  const id = Math.max(0, ...todos.map((todo) => todo.id)) + 1;
  return [...todos, { id, title, minutes, done: false }];
}

/** Marks a todo as done and returns the new list. */
export function completeTodo(todos, id) {
  if (!todos.some((todo) => todo.id === id)) {
    throw new Error(`there is no todo ${id}`);
  }
  return todos.map((todo) => (todo.id === id ? { ...todo, done: true } : todo));
}

export function openTodos(todos) {
  return todos.filter((todo) => !todo.done);
}
""",
    "src/format.js": """/** Hours and minutes: 95 is 1:35. */
export function formatDuration(minutes) {
  const hours = Math.floor(minutes / 60);
  const rest = String(minutes % 60).padStart(2, "0");
  return `${hours}:${rest}`;
}

export function formatTodo(todo) {
  return `${todo.id}. ${todo.title} (${formatDuration(todo.minutes)})`;
}
""",
    "src/cli.js": """#!/usr/bin/env node
import { existsSync, readFileSync, writeFileSync } from "node:fs";
import { formatTodo } from "./format.js";
import { addTodo, completeTodo, openTodos } from "./todo.js";

const FILE = "todos.json";

function load() {
  return existsSync(FILE) ? JSON.parse(readFileSync(FILE, "utf8")) : [];
}

function save(todos) {
  writeFileSync(FILE, JSON.stringify(todos, null, 2));
}

const [command, ...words] = process.argv.slice(2);

if (command === "add") {
  const [minutes, ...title] = words;
  save(addTodo(load(), title.join(" "), Number(minutes)));
} else if (command === "done") {
  save(completeTodo(load(), Number(words[0])));
} else if (command === "list") {
  for (const todo of openTodos(load())) {
    console.log(formatTodo(todo));
  }
} else {
  console.error("usage: todo add MINUTES TITLE | done ID | list");
  process.exit(2);
}
""",
    "test/todo.test.js": """import assert from "node:assert/strict";
import test from "node:test";
import { addTodo, completeTodo, openTodos } from "../src/todo.js";

test("a new todo is open and has an id of its own", () => {
  const todos = addTodo(addTodo([], "write", 30), "read", 10);
  assert.deepEqual(todos.map((todo) => todo.id), [1, 2]);
  assert.equal(openTodos(todos).length, 2);
});

test("a completed todo is not open", () => {
  const todos = completeTodo(addTodo([], "write", 30), 1);
  assert.equal(openTodos(todos).length, 0);
});
""",
    "test/format.test.js": """import assert from "node:assert/strict";
import test from "node:test";
import { formatDuration } from "../src/format.js";

test("hours and minutes", () => {
  assert.equal(formatDuration(95), "1:35");
});
""",
}
