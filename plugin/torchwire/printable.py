"""Text that others have written, on a terminal."""

from __future__ import annotations

import unicodedata


def printable(text: str) -> str:
    """The text with its control characters written as escapes, such as \\x1b; line feeds and tabs stay."""
    return "".join(character if _is_harmless(character) else _escape(character) for character in text)


def _is_harmless(character: str) -> bool:
    # Cf has what turns the direction of writing round, Cs what no terminal takes.
    return character in "\n\t" or unicodedata.category(character) not in ("Cc", "Cf", "Cs")


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
