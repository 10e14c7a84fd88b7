"""What workers' answers have to look like for those who show them: a worker of another version may say anything."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from torchwire._build import VERSION

_LARGEST = float(1 << 64)  # no count or size goes beyond, and no "NaN" or "Infinity" is within

# A dict has at least these keys, or any where the key is `str`; a list has any number of such elements; `float` stands
# for every number, and `object` for all that there is.
_STATUS = {
    "time": float,
    "worker": {"name": str, "rank": int, "pid": int, "memory_bytes": float},
    "functions": [
        {
            "kind": str,
            "failures": {str: float},
            "errors": float,
            "latency": {"count": float, "counts": [float]},
            "run": {"count": float, "counts": [float]},
        }
    ],
    "counts": {"calls_in_flight": float, "requests_active": float},
    "peers": [{"state": str, "transport": str, "bytes_sent": float, "bytes_received": float}],
    "rrefs": {str: float},
    "autograd_contexts": float,
}
_NOT_UNDERSTOOD = (
    f"gives no answer that torchwire {VERSION} understands: it runs another version of torchwire, or has just ended; "
    "run this command with that worker's own Python"
)
_SHAPES: Mapping[str, Any] = {"status": _STATUS, "group": {str: object}, "dump": {"text": str}}


def read(question: str, text: str | bytes) -> Any:
    """The answer that a worker has given to that question as JSON. Raises RuntimeError as `understood` does."""
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        raise RuntimeError(_NOT_UNDERSTOOD) from None
    return understood(question, answer)


def understood(question: str, answer: Any) -> Any:
    """The answer, if it is one to that question.

    Raises RuntimeError, with words that the worker's name can stand before, when it is an error or something else.
    """
    if _fits(answer, {"error": str}) and len(answer) == 1:
        raise RuntimeError(answer["error"])
    if not _fits(answer, _SHAPES[question]):
        raise RuntimeError(_NOT_UNDERSTOOD)
    return answer


def _fits(value: Any, shape: Any) -> bool:
    if isinstance(shape, dict):
        return isinstance(value, dict) and _has_keys(cast("dict[str, Any]", value), cast("dict[Any, Any]", shape))
    if isinstance(shape, list):
        return isinstance(value, list) and all(_fits(each, shape[0]) for each in cast("list[Any]", value))
    if shape in (int, float):
        return isinstance(value, (int, shape)) and -_LARGEST < value < _LARGEST
    return isinstance(value, shape)


def _has_keys(value: Mapping[str, Any], shape: Mapping[Any, Any]) -> bool:
    if str in shape:
        return all(_fits(each, shape[str]) for each in value.values())
    return all(key in value and _fits(value[key], each) for key, each in shape.items())
