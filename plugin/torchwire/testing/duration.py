"""How long a fault takes: a fixed time, or one that is drawn anew for each fault."""

from __future__ import annotations

import math
import numbers
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from typing import Any, Union, cast

from torchwire.suggestion import did_you_mean


@dataclass(frozen=True)
class Uniform:
    """Any time between `lo` and `hi` seconds, all equally likely.

    Raises TypeError for what is no number, and ValueError unless 0 <= lo <= hi and hi is above 0 and finite.
    """

    lo: float
    hi: float

    def __post_init__(self) -> None:
        _check_fields(self)
        if not self.lo <= self.hi or self.hi == 0:
            raise ValueError(f"Uniform: hi must be above 0 and not below lo, got lo={self.lo} and hi={self.hi} seconds")


@dataclass(frozen=True)
class Normal:
    """Times around `mean` seconds with the standard deviation `std`; what would be negative becomes 0.

    Raises TypeError for what is no number, and ValueError unless both are finite and not negative.
    """

    mean: float
    std: float

    def __post_init__(self) -> None:
        _check_fields(self)


@dataclass(frozen=True)
class Exponential:
    """Times of `mean` seconds on average, most of them short and some much longer.

    Raises TypeError for what is no number, and ValueError unless it is finite and above 0.
    """

    mean: float

    def __post_init__(self) -> None:
        _check_fields(self)
        if self.mean == 0:
            raise ValueError("Exponential: mean must be above 0 seconds")


Distribution = Union[Uniform, Normal, Exponential]
Duration = Union[float, Distribution]

_SHAPES: dict[str, type[Distribution]] = {"uniform": Uniform, "normal": Normal, "exponential": Exponential}
_KINDS = "a number of seconds, Uniform(lo, hi), Normal(mean, std) or Exponential(mean)"


def check_seconds(where: str, value: Any) -> float:
    """Returns a number of seconds; raises TypeError and ValueError unless it is finite and not negative."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where} must be a number of seconds, got {value!r} ({type(value).__name__})")
    seconds = float(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{where} must be finite and not negative, got {value} seconds")
    return seconds


def check_duration(where: str, value: Any) -> Duration:
    """Returns a duration; as in a TOML file, {"uniform": [lo, hi]} stands for Uniform(lo, hi)."""
    if isinstance(value, (Uniform, Normal, Exponential)):
        return value
    if isinstance(value, Mapping):
        return _from_dict(where, cast("Mapping[Any, Any]", value))
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where} must be {_KINDS}, got {value!r} ({type(value).__name__})")
    return check_seconds(where, value)


def to_plain(duration: Duration) -> float | dict[str, float | list[float]]:
    """The duration as in a TOML file; see check_duration."""
    if isinstance(duration, (float, int)):
        return duration
    values = [float(value) for value in astuple(duration)]
    return {_shape_of(duration): values[0] if len(values) == 1 else values}


def to_interceptor(duration: Duration) -> dict[str, Any]:
    """The duration as the extension takes it."""
    if isinstance(duration, (float, int)):
        return {"shape": "fixed", "a": duration, "b": 0.0}
    values = [*map(float, astuple(duration)), 0.0]
    return {"shape": _shape_of(duration), "a": values[0], "b": values[1]}


def _shape_of(duration: Distribution) -> str:
    return type(duration).__name__.lower()


def _check_fields(duration: Distribution) -> None:
    for field in fields(duration):
        check_seconds(f"{type(duration).__name__}: {field.name}", getattr(duration, field.name))


def _from_dict(where: str, value: Mapping[Any, Any]) -> Distribution:
    if len(value) != 1:
        raise ValueError(f"{where} must name one distribution, {' or '.join(_SHAPES)}, got {dict(value)!r}")
    ((shape, arguments),) = value.items()
    if shape not in _SHAPES:
        suggestion = did_you_mean(str(shape), _SHAPES)
        raise ValueError(f"{where}: unknown distribution {shape!r}{suggestion}; known are {', '.join(_SHAPES)}")
    kind = _SHAPES[shape]
    arguments = list(cast("Sequence[Any]", arguments)) if isinstance(arguments, (list, tuple)) else [arguments]
    wanted = [field.name for field in fields(kind)]
    if len(arguments) != len(wanted):
        raise ValueError(f"{where}: {shape} takes {' and '.join(wanted)}, got {arguments!r}")
    return kind(*arguments)
