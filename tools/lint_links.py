"""Whether the links in Markdown files lead somewhere: to a file, and to a heading of it.

    python tools/lint_links.py [--root FOLDER]

Links to other sites are not looked at. Prints each violation on a line of its own, and ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import sys
from collections.abc import Iterator

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
_HEADING = re.compile(r"^#+\s+(.*?)\s*$", re.MULTILINE)
_CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_LEFT_OUT = {"build", ".git"}


def documents_of(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for path in sorted(root.rglob("*.md")):
        parts = path.relative_to(root).parts
        if not any(part in _LEFT_OUT or part.startswith(".venv") for part in parts):
            yield path


def anchors_of(document: pathlib.Path) -> set[str]:
    """The headings, as GitHub names them."""
    headings = _HEADING.findall(re.sub(r"^```.*?^```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(root: pathlib.Path) -> Iterator[str]:
    for document in documents_of(root):
        for link in _LINK.findall(_CODE.sub("", document.read_text())):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (document.parent / name).resolve() if name else document
            where = document.relative_to(root)
            if not target.exists():
                yield f"{where}: the link to {link} leads nowhere"
            elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
                yield f"{where}: {link} names a heading that is not there"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    violations = list(dead_links(parser.parse_args().root.resolve()))
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
