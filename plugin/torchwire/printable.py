"""Text that others have written: on a terminal, and as the extension takes it."""

from __future__ import annotations

import unicodedata
from collections.abc import Callable
from typing import Any


def printable(text: str) -> str:
    """The text with its control characters written as escapes, such as \\x1b; line feeds and tabs stay."""
    return "".join(character if _is_harmless(character) else _escape(character) for character in text)


def encodable(text: str) -> str:
    """The text with its lone surrogates written as escapes, such as \\ud800: the extension takes UTF-8."""
    return str.encode(text, "utf-8", "backslashreplace").decode()


def text_of(value: object, words: Callable[[Any], str] = str) -> str:
    """What `words` makes of the value; "" where the value's own methods raise instead."""
    try:
        return str.__str__(value) if isinstance(value, str) and words is str else words(value)
    except Exception:
        return ""


def _is_harmless(character: str) -> bool:
    # Cf has what turns the direction of writing round, Cs what no terminal takes.
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
