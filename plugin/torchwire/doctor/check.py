"""The outcome of one check."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

OK = "ok"
WARNING = "warning"
FAILED = "failed"


@dataclass(frozen=True)
class Check:
    """What was looked at, how it stands, what was found and, unless it is OK, what helps.

    `figures` are for programs that read the JSON document.
    """

    name: str
    status: str
    found: str
    remedy: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        assert (self.status == OK) == (not self.remedy), f"{self.name}: {self.status}, remedy {self.remedy!r}"


def ok(name: str, found: str, **figures: Any) -> Check:
    """Nothing to be done."""
    return Check(name, OK, found, "", figures)


def warning(name: str, found: str, remedy: str, **figures: Any) -> Check:
    """torchwire works, but slower or not everywhere."""
    return Check(name, WARNING, found, remedy, figures)


def failed(name: str, found: str, remedy: str, **figures: Any) -> Check:
    """torchwire does not work like this."""
    return Check(name, FAILED, found, remedy, figures)
