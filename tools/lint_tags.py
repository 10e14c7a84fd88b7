"""Whether each test of test/unit belongs to a Meson test, which runs a tag's: else nothing would run it.

    python tools/lint_tags.py [--root FOLDER]

Tests that are hidden ("[.]") run by hand alone. Prints each tag that is in no list of test/unit/meson.build, and ends
with 1 if there is any.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

_TAGS = re.compile(r'"((?:\[[^\]"]+\])+)"\s*\)\s*\{')
_TAG = re.compile(r"\[([^\]]+)\]")


def tests_that_nobody_runs(folder: pathlib.Path) -> list[str]:
    listed = set(re.findall(r"'(\w+)'", (folder / "meson.build").read_text()))
    found: list[str] = []
    for source in sorted(folder.rglob("*_test.cpp")):
        for tags in {tags for tags in _TAGS.findall(source.read_text()) if "[.]" not in tags}:
            if not listed & set(_TAG.findall(tags)):
                found.append(f"{source}: meson.build lists none of {tags}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path())
    found = tests_that_nobody_runs(parser.parse_args().root / "test" / "unit")
    for line in found:
        print(line)
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
