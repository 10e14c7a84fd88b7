"""Whether docs/threads.md has a row for each thread that torchwire starts, and none for another.

    python tools/lint_threads.py [--root FOLDER]

A thread is known by its name: in C++ a string "torchwire_...", in Python one "torchwire ...", or what threading.Thread
is given as `name` and begins with "torchwire". Threads of `_thread` have no name, and are not looked for. Prints each
name that is in one place alone, and ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
import sys
from collections.abc import Iterator

_IN_CPP = re.compile(r'"(torchwire_[a-z]+)"')
_IN_PYTHON = re.compile(r"torchwire [a-z]+")
_IN_TABLE = re.compile(r"^\| [^|]+ \| `(torchwire[ _-][a-z]+)`", re.MULTILINE)
_FOLDERS = ("backend", "autograd", "rref", "cuda", "plugin")


def started_in_cpp(root: pathlib.Path) -> Iterator[str]:
    for folder in _FOLDERS:
        for source in (root / folder).rglob("*.cpp"):
            yield from _IN_CPP.findall(source.read_text())


def started_in_python(root: pathlib.Path) -> Iterator[str]:
    for source in (root / "plugin").rglob("*.py"):
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.Constant) and _IN_PYTHON.fullmatch(str(node.value)):
                yield str(node.value)
            elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("Thread"):
                yield from (name for name in _names_in(node) if name.startswith("torchwire"))


def _names_in(call: ast.Call) -> Iterator[str]:
    for keyword in call.keywords:
        if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
            yield str(keyword.value.value)


def complaints(root: pathlib.Path) -> Iterator[str]:
    page = root / "docs" / "threads.md"
    described = set(_IN_TABLE.findall(page.read_text()))
    started = {*started_in_cpp(root), *started_in_python(root)}
    for name in sorted(started - described):
        yield f"docs/threads.md has no row for the thread {name!r}"
    for name in sorted(described - started):
        yield f"docs/threads.md has a row for the thread {name!r}, which nothing starts"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path())
    found = list(complaints(parser.parse_args().root))
    for line in found:
        print(line)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
