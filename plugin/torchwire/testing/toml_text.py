"""TOML, as far as fault plans need it: reading by Python's own parser, writing of what they consist of."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from typing import Any, cast


def load(source: str | os.PathLike[str]) -> tuple[dict[str, Any], str]:
    """The content of a TOML file or text (text has a line break or a '='), and what to call it in messages.

    Raises OSError when the file cannot be read, ValueError for what is not TOML, and ImportError when this
    Python has no parser.
    """
    if not isinstance(cast("object", source), (str, os.PathLike)):
        raise TypeError(f"a plan is read from a path or from text, got {source!r} ({type(source).__name__})")
    if isinstance(source, str) and ("\n" in source or "=" in source):
        return _parse(source, "the plan"), "the plan"
    path = os.fsdecode(source)
    with open(path, encoding="utf-8") as file:
        return _parse(file.read(), path), path


def dump(data: Mapping[str, Any]) -> str:
    """Plain values first, then a [[table]] for each dict in a list."""
    blocks = [[f"{key} = {_value(value)}" for key, value in data.items() if not _is_tables(value)]]
    for key, value in data.items():
        if _is_tables(value):
            blocks += [[f"[[{key}]]", *(f"{name} = {_value(each)}" for name, each in table.items())] for table in value]
    return "\n\n".join("\n".join(block) for block in blocks) + "\n"


def _parse(text: str, name: str) -> dict[str, Any]:
    try:
        return _parser().loads(text)
    except ValueError as error:
        raise ValueError(f"{name}: not TOML: {error}") from None


def _parser() -> Any:
    if sys.version_info >= (3, 11):
        import tomllib

        return tomllib
    try:
        return importlib.import_module("tomli")
    except ImportError:
        raise ImportError(
            "fault plans in TOML need Python 3.11 or the package tomli (pip install tomli); "
            "Plan.from_dict takes the same content as a dict"
        ) from None


def _is_tables(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(each, Mapping) for each in cast("list[object]", value))


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return (
            "{ " + ", ".join(f"{key} = {_value(each)}" for key, each in cast("Mapping[str, Any]", value).items()) + " }"
        )
    if isinstance(value, list):
        return f"[{', '.join(map(_value, cast(list[Any], value)))}]"
    # JSON's way to write text, numbers, true and false is TOML's too, for what plans consist of.
    return json.dumps(value)
