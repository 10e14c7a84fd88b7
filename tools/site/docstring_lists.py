"""An extension of griffe: what docstrings say of each argument, option or key becomes a list.

    name: what it is, which may go on
        in indented lines

is how they are written, for people who read them in a terminal; Markdown would run the lines together.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ENTRY = re.compile(r"^([A-Za-z_]\w*(?:, \w+)*): (.*(?:\n +.*)*)", re.MULTILINE)


class DocstringLists(griffe.Extension):
    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            obj.docstring.value = with_lists(obj.docstring.value)


def with_lists(text: str) -> str:
    return "\n\n".join(map(_with_list, text.split("\n\n")))


def _with_list(paragraph: str) -> str:
    entries = list(_ENTRY.finditer(paragraph))
    # Each line belongs to an entry: else it is prose that happens to have a colon.
    if not entries or "\n".join(entry[0] for entry in entries) != paragraph.rstrip("\n"):
        return paragraph
    return "\n".join(f"- **{entry[1]}**: {re.sub(chr(10) + ' +', ' ', entry[2])}" for entry in entries)
