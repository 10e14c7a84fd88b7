"""One rule of a fault plan: which messages it matches, and what happens to them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, fields
from typing import Any, cast

from torchwire.suggestion import did_you_mean
from torchwire.testing import duration, message_types, rule_checks
from torchwire.testing.duration import Duration
from torchwire.testing.phases import PHASES_OF

_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    "name": rule_checks.name,
    "messages": rule_checks.messages,
    "from_": rule_checks.workers,
    "to": rule_checks.workers,
    "phase": rule_checks.phase,
    "nth": rule_checks.occurrences,
    "probability": rule_checks.probability,
    "at_least": rule_checks.at_least,
    "at_most": rule_checks.at_most,
    "each_message": rule_checks.switch,
    "seconds": rule_checks.seconds,
    "between": rule_checks.between,
    "after": rule_checks.after,
    "byte": rule_checks.byte,
}


@dataclass(frozen=True, repr=False)
class Rule:
    """What goes wrong with some messages. All arguments but `action` are keyword-only and may be left out.

    action: drop, fail, delay, duplicate, reorder or corrupt the message, close the link, refuse a connection, pause or
        kill the process, or partition two sets of workers. torchwire/testing/phases.py says which is possible when.
    name: what logs call it: letters, digits, spaces and _-.:/#. Default: the action and its place in the plan.
    messages: types of requests by PyTorch's names or torchwire's, such as "PYTHON_CALL", or groups of them: "call"
        (runs something of the user's), "fetch" (gets the value of an RRef), "control" (all others). Default: all.
    from_, to: names of the workers that call and are called, or shell patterns such as "ps*". Default: all.
    phase: where in the call's life: request (the default), in_flight, response, mid_tensor; for refuse: connect.
    nth: which occurrences it may apply to, counted from 1 for each type, caller, callee and phase apart, from when the
        plan takes effect. Default: all.
    probability: with which it applies to one of those; drawn from the plan's seed. Default 1.
    at_least: the first so many it applies to whatever the probability. Default 0.
    at_most: so many it applies to for each type, caller, callee and phase. Default: any number.
    each_message: count and limit among messages with the same content, which are retries of one, instead.
        Default False.
    seconds: of a delay, a pause or a partition, which need it; of a reorder: after which the message goes on if none
        has overtaken it, by default 1. A number, Uniform(lo, hi), Normal(mean, std) or Exponential(mean).
    between: of a partition: the two sets of workers, as from_ and to. Default: none.
    after: of a partition: seconds from when the plan takes effect until it begins. Default 0.
    byte: of a corrupt: which byte of the frame, modulo its length. Default: drawn.

    A single name or number may stand for a list of one. A wrong type raises TypeError, a wrong value ValueError; both
    name the rule and say what would be right. Immutable.
    """

    action: str
    _: KW_ONLY
    name: str | None = None
    messages: Iterable[str] = ()
    from_: Iterable[str] = ()
    to: Iterable[str] = ()
    phase: str | None = None
    nth: Iterable[int] | int = ()
    probability: float = 1.0
    at_least: int = 0
    at_most: int | None = None
    each_message: bool = False
    seconds: Duration = 0.0
    between: tuple[Iterable[str], Iterable[str]] | None = None
    after: float = 0.0
    byte: int | None = None

    def __post_init__(self) -> None:
        rule_checks.action(self.action)
        where = _where(self.action, self.name)
        for argument, check in _CHECKS.items():
            object.__setattr__(self, argument, check(f"{where}: {argument}", getattr(self, argument)))
        rule_checks.fit_together(f"{where}: ", vars(self), _DEFAULTS)
        if self.phase is None and self.action != "partition":
            object.__setattr__(self, "phase", PHASES_OF[self.action][0])

    def __repr__(self) -> str:
        return f"Rule({', '.join([repr(self.action), *(f'{key}={value!r}' for key, value in self._given().items())])})"

    @classmethod
    def from_dict(cls, arguments: Mapping[str, Any]) -> Rule:
        """A rule from its arguments, as in a TOML file: "from" stands for from_, {"uniform": [lo, hi]} for Uniform."""
        if not isinstance(cast("object", arguments), Mapping):
            raise TypeError(f"a rule must be a dict, got {arguments!r} ({type(arguments).__name__})")
        known = {_key(argument): argument for argument in ("action", *_CHECKS)}
        for key in arguments:
            if key not in known and key != "from_":
                raise ValueError(f"a rule has no {key!r}{did_you_mean(str(key), known)}; it takes {', '.join(known)}")
        if "action" not in arguments:
            raise ValueError(f"action is missing; choose one of {', '.join(PHASES_OF)}")
        return cls(**{known.get(key, key): value for key, value in arguments.items()})

    def to_dict(self) -> dict[str, Any]:
        """The arguments that are not as by default, in plain types and as from_dict takes them."""
        return {"action": self.action, **{_key(key): _plain(value) for key, value in self._given().items()}}

    def to_interceptor(self, place: int) -> dict[str, Any]:
        """The rule as the extension takes it; `place` is its number in the plan, from 1, for a rule without a name."""
        from_, to = self.between or (self.from_, self.to)
        return {
            "name": self.name or f"{self.action}#{place}",
            "action": self.action,
            "phase": self.phase or "request",
            "messages": message_types.numbers(tuple(self.messages)),
            "from": list(from_),
            "to": list(to),
            "nth": list(self.nth),  # pyright: ignore[reportArgumentType] - a tuple since __post_init__
            "probability": self.probability,
            "at_least": self.at_least,
            "at_most": self.at_most or 0,
            "each_message": self.each_message,
            "seconds": duration.to_interceptor(self.seconds),
            "after": self.after,
            "byte": self.byte,
        }

    def _given(self) -> dict[str, Any]:
        usual = {**_DEFAULTS, "phase": (*PHASES_OF[self.action], None)[0]}
        return {key: getattr(self, key) for key in _CHECKS if getattr(self, key) != usual[key]}


_DEFAULTS = {field.name: field.default for field in fields(Rule) if field.name in _CHECKS}


def _where(action: str, name: Any) -> str:
    return f"Rule({action!r})" if name is None else f"Rule({action!r}, name={name!r})"


def _key(argument: str) -> str:
    return argument.removesuffix("_")


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_plain(each) for each in cast("tuple[Any, ...]", value)]
    if isinstance(value, (duration.Uniform, duration.Normal, duration.Exponential)):
        return duration.to_plain(value)
    return value
