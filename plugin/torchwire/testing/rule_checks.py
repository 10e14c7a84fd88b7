"""Checks of a rule's arguments: each takes how the argument is called in messages, and its value, and returns the value
in its final form. The checks of how they fit together come last."""

from __future__ import annotations

import numbers
import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from torchwire import option_checks
from torchwire.suggestion import did_you_mean
from torchwire.testing import message_types
from torchwire.testing.duration import Duration, check_duration, check_seconds
from torchwire.testing.phases import NEEDS_TIME, PHASES, PHASES_OF, TIMED

_HIGHEST = 2**63 - 1
_NAME = re.compile(r"[A-Za-z0-9 _.:/#-]+")
_WORKERS = re.compile(r"[A-Za-z0-9_:*?\[\]!-]+")  # what names of workers are made of, and what shell patterns are

# Arguments that have a meaning for some actions only, and those that have none for some.
_ONLY_FOR = {"seconds": TIMED, "between": ("partition",), "after": ("partition",), "byte": ("corrupt",)}
_NOT_FOR = {
    "refuse": ("messages", "each_message"),
    "partition": ("messages", "from_", "to", "phase", "nth", "probability", "at_least", "at_most", "each_message"),
}
_WHY_NOT = {"refuse": "it applies to connections, which carry no message yet", "partition": "it applies to all frames"}


def action(value: Any) -> str:
    """The name of an action."""
    if not isinstance(value, str):
        raise TypeError(f"Rule: action must be a name, got {value!r} ({type(value).__name__})")
    if value not in PHASES_OF:
        raise ValueError(
            f"Rule: unknown action {value!r}{did_you_mean(value, PHASES_OF)}; known are {', '.join(PHASES_OF)}"
        )
    return value


def name(where: str, value: Any) -> str | None:
    """What logs call the rule, or None."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{where} must be text or None, got {value!r} ({type(value).__name__})")
    if not _NAME.fullmatch(value):
        raise ValueError(f"{where} may have letters, digits, spaces and _-.:/# only, got {value!r}")
    return value


def messages(where: str, value: Any) -> tuple[str, ...]:
    """Names of message types and groups; a single one may stand for itself."""
    return tuple(dict.fromkeys(message_types.check_name(where, each) for each in _several(where, value, "names")))


def workers(where: str, value: Any) -> tuple[str, ...]:
    """Names of workers and shell patterns for them; a single one may stand for itself."""
    names = _several(where, value, "names of workers")
    for each in names:
        if not isinstance(each, str):
            raise TypeError(f"{where} must hold names of workers, got {each!r} ({type(each).__name__})")
        if not _WORKERS.fullmatch(each):
            raise ValueError(
                f"{where}: {each!r} can match no worker; names have letters, digits, '_', ':' and '-', patterns also "
                "'*', '?', '[...]' and '[!...]'"
            )
    return tuple(dict.fromkeys(names))


def phase(where: str, value: Any) -> str | None:
    """The name of a phase, or None for the usual one."""
    if value is None:
        return None
    if not isinstance(value, str):
        raise TypeError(f"{where} must be a name, got {value!r} ({type(value).__name__})")
    if value not in PHASES:
        suggestion = did_you_mean(value, PHASES)
        raise ValueError(f"{where}: unknown phase {value!r}{suggestion}; known are {', '.join(PHASES)}")
    return value


def occurrences(where: str, value: Any) -> tuple[int, ...]:
    """Which ones of a stream, counted from 1, in order; a single number may stand for itself."""
    if isinstance(value, numbers.Integral):
        value = (value,)
    numbers_ = [_count(where, each, lowest=1, hint="; the first is 1") for each in _several(where, value, "numbers")]
    return tuple(sorted(set(numbers_)))


def probability(where: str, value: Any) -> float:
    """A number from 0 to 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where} must be a number from 0 to 1, got {value!r} ({type(value).__name__})")
    if not 0 <= float(value) <= 1:
        raise ValueError(f"{where} must be from 0 to 1, got {value}")
    return float(value)


def at_least(where: str, value: Any) -> int:
    """A number of faults."""
    return _count(where, value, lowest=0)


def at_most(where: str, value: Any) -> int | None:
    """A number of faults, or None for any."""
    return None if value is None else _count(where, value, lowest=1, hint="; leave the rule out to have none")


def switch(where: str, value: Any) -> bool:
    """True or False."""
    return option_checks.switch(where, value)


def seconds(where: str, value: Any) -> Duration:
    """A time or a distribution of times."""
    return check_duration(where, value)


def after(where: str, value: Any) -> float:
    """A time."""
    return check_seconds(where, value)


def byte(where: str, value: Any) -> int | None:
    """The place of a byte, or None for a drawn one."""
    return None if value is None else _count(where, value, lowest=0)


def between(where: str, value: Any) -> tuple[tuple[str, ...], tuple[str, ...]] | None:
    """Two sets of workers, or None."""
    if value is None:
        return None
    sides = _several(where, value, "two sets of workers")
    if isinstance(value, str) or len(sides) != 2:
        raise ValueError(f"{where} must be two sets of workers, such as (['worker0'], ['worker1', 'worker2'])")
    first, second = (workers(where, side) for side in sides)
    if not first or not second:
        raise ValueError(f"{where}: both sets must have a worker, got {first} and {second}")
    for both in set(first) & set(second):
        raise ValueError(f"{where}: {both!r} is in both sets")
    return first, second


def fit_together(where: str, arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
    """Raises ValueError when arguments, each right in itself, do not make a rule."""
    kind = arguments["action"]
    for argument, default in defaults.items():
        if arguments[argument] != default:
            _check_meaning(where, kind, argument)
    _check_phase(where, kind, arguments["phase"])
    if kind in NEEDS_TIME and arguments["seconds"] == 0:
        raise ValueError(f"{where}seconds is missing: say how long, such as seconds=0.5 or seconds=Uniform(0.1, 0.5)")
    if kind == "partition" and arguments["between"] is None:
        raise ValueError(f"{where}between is missing: name two sets of workers, between=(['worker0'], ['worker1'])")
    _check_counts(where, arguments)


def _check_meaning(where: str, kind: str, argument: str) -> None:
    if kind not in _ONLY_FOR.get(argument, (kind,)):
        raise ValueError(f"{where}{argument} has no meaning here; it belongs to {' and '.join(_ONLY_FOR[argument])}")
    if argument in _NOT_FOR.get(kind, ()):
        raise ValueError(f"{where}{argument} has no meaning here: {_WHY_NOT[kind]}")


def _check_phase(where: str, kind: str, phase: str | None) -> None:
    possible = PHASES_OF[kind]
    if phase is not None and phase not in possible:
        others = ", ".join(other for other, phases in PHASES_OF.items() if phase in phases)
        raise ValueError(
            f"{where}phase {phase!r} is not one in which a {kind} is possible; choose {' or '.join(possible)} "
            f"(in {phase!r}, {others} {'is' if ',' not in others else 'are'})"
        )


def _check_counts(where: str, arguments: Mapping[str, Any]) -> None:
    least, most, nth = (arguments[key] for key in ("at_least", "at_most", "nth"))
    if most is not None and least > most:
        raise ValueError(f"{where}at_least is {least}, which is more than at_most, {most}")
    if nth and least > len(nth):
        raise ValueError(f"{where}at_least is {least}, but nth allows only {len(nth)}")


def _several(where: str, value: Any, what: str) -> list[Any]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, (bytes, Mapping)) or not isinstance(value, Iterable):
        raise TypeError(f"{where} must be a list of {what}, got {value!r} ({type(cast('object', value)).__name__})")
    several = cast("Iterable[Any]", value)
    return sorted(several) if isinstance(value, (set, frozenset)) else list(several)


def _count(where: str, value: Any, lowest: int, hint: str = "") -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where} must be a whole number, got {value!r} ({type(value).__name__})")
    if not lowest <= int(value) <= _HIGHEST:
        raise ValueError(f"{where} must be at least {lowest}, got {value}{hint}")
    return int(value)
