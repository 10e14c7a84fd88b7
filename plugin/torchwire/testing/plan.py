"""A fault plan: the rules by which a worker injects faults, and the seed that they draw from."""

from __future__ import annotations

import numbers
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from torchwire.suggestion import did_you_mean
from torchwire.testing import toml_text
from torchwire.testing.fault import Fault
from torchwire.testing.recorded_rules import rules_from
from torchwire.testing.rule import Rule

_KEYS = ("seed", "rule")
_HIGHEST_SEED = 2**63 - 1  # of TOML's integers


@dataclass(frozen=True)
class Plan:
    """Rules, of which the first that applies to a message is the only one to do so, and the seed of their draws.

    rules: in order. Default: none.
    seed: a whole number. Which messages get a fault depends on the plan alone: not on how workers and threads happen
        to interleave. Default 0.

    A wrong type raises TypeError, a wrong value ValueError. Immutable.
    """

    rules: Iterable[Rule] = ()
    seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rules", _checked_rules(self.rules))
        object.__setattr__(self, "seed", _checked_seed(self.seed))

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Plan:
        """A plan from `data`: {"seed": 7, "rule": [{"action": "drop", ...}, ...]}, the form that TOML files have."""
        return cls._from_dict(data, "the plan")

    @classmethod
    def from_toml(cls, source: str | os.PathLike[str]) -> Plan:
        """A plan from `source`: the path of a TOML file, or text, which is what has a line break or a '=':

            seed = 7

            [[rule]]
            action = "delay"
            messages = ["PYTHON_CALL"]
            from = ["trainer*"]
            seconds = { uniform = [0.001, 0.02] }

        Raises OSError when the file cannot be read, and ValueError or TypeError for what is in it.
        """
        data, name = toml_text.load(source)
        return cls._from_dict(data, name)

    @classmethod
    def from_log(cls, log: Iterable[Fault]) -> Plan:
        """The plan that injects the faults of a log again, at the same messages, if those come again.

        Whatever chance decided is fixed: each rule names the caller, the callee, the type, the phase and the
        occurrence. What a partition held back is delayed, for as long.

        Raises ValueError for a log with several revisions of a plan, in each of which occurrences were counted anew.
        """
        return cls(rules_from(log))

    def to_dict(self) -> dict[str, Any]:
        """The plan in plain types, as from_dict takes it."""
        return {"seed": self.seed, "rule": [rule.to_dict() for rule in self.rules]}

    def to_toml(self) -> str:
        """The plan as the text of a TOML file."""
        return toml_text.dump(self.to_dict())

    def to_interceptor(self, revision: int) -> dict[str, Any]:
        """The plan as the extension takes it; `revision` tells it from those before."""
        rules = [rule.to_interceptor(place) for place, rule in enumerate(self.rules, start=1)]
        return {"revision": revision, "seed": self.seed, "rules": rules}

    @classmethod
    def _from_dict(cls, data: Mapping[str, Any], where: str) -> Plan:
        if not isinstance(cast("object", data), Mapping):
            raise TypeError(f"{where} must be a dict, got {data!r} ({type(data).__name__})")
        for key in data:
            if key not in _KEYS:
                raise ValueError(f"{where} has no {key!r}{did_you_mean(str(key), _KEYS)}; it takes {', '.join(_KEYS)}")
        tables = data.get("rule", [])
        if not isinstance(tables, (list, tuple)):
            raise TypeError(f"{where}: rule must be a list; write each rule as [[rule]], with two brackets")
        rules = [
            _rule(table, f"{where}, rule {place}") for place, table in enumerate(cast("Sequence[Any]", tables), start=1)
        ]
        return cls(rules, data.get("seed", 0))


def as_plan(where: str, value: Any) -> Plan:
    """Returns the plan, or the one in the TOML file whose path is given."""
    if isinstance(value, Plan):
        return value
    if isinstance(value, (str, os.PathLike)):
        return Plan.from_toml(cast("str | os.PathLike[str]", value))
    raise TypeError(f"{where} must be a Plan or the path of a TOML file, got {value!r} ({type(value).__name__})")


def _rule(table: Any, where: str) -> Rule:
    try:
        return Rule.from_dict(table)
    except (TypeError, ValueError) as error:
        raise type(error)(f"{where}: {error}") from None


def _checked_rules(rules: Any) -> tuple[Rule, ...]:
    if isinstance(rules, (str, Mapping)) or not isinstance(rules, Iterable):
        raise TypeError(f"Plan: rules must be a list of Rule, got {rules!r} ({type(cast('object', rules)).__name__})")
    checked = tuple(cast("Iterable[Any]", rules))
    for rule in checked:
        if not isinstance(rule, Rule):
            raise TypeError(f"Plan: rules must hold Rule, got {rule!r} ({type(rule).__name__})")
    return checked


def _checked_seed(seed: Any) -> int:
    if isinstance(seed, bool) or not isinstance(seed, numbers.Integral):
        raise TypeError(f"Plan: seed must be a whole number, got {seed!r} ({type(seed).__name__})")
    if not 0 <= int(seed) <= _HIGHEST_SEED:
        raise ValueError(f"Plan: seed must be between 0 and {_HIGHEST_SEED}, got {seed}")
    return int(seed)
