"""Outcomes of checks, for people and for programs."""

from __future__ import annotations

import json
import platform
from collections.abc import Sequence

from torchwire.doctor import versions
from torchwire.doctor.check import FAILED, OK, WARNING, Check

_STATUS_WIDTH = len(WARNING)


def line(check: Check, width: int) -> str:
    """One line; names take `width` columns."""
    remedy = f"; remedy: {check.remedy}" if check.remedy else ""
    return f"{check.status:<{_STATUS_WIDTH}}  {check.name:<{width}}  {check.found}{remedy}"


def summary(checks: Sequence[Check]) -> str:
    """How many of each."""
    return ", ".join(f"{_count(checks, status)} {status}" for status in (OK, WARNING, FAILED))


def as_table(checks: Sequence[Check]) -> str:
    """A line for each, and the summary."""
    width = max((len(check.name) for check in checks), default=0)
    return "\n".join([*(line(check, width) for check in checks), summary(checks)])


def as_json(checks: Sequence[Check]) -> str:
    """One document; `failed` says whether any check failed."""
    document = {
        "host": platform.node(),
        "torchwire": versions.torchwire_version(),
        "torch": versions.torch_version(),
        "failed": any(check.status == FAILED for check in checks),
        "checks": [
            {
                "name": check.name,
                "status": check.status,
                "found": check.found,
                "remedy": check.remedy or None,
                **({"figures": dict(check.figures)} if check.figures else {}),
            }
            for check in checks
        ],
    }
    return json.dumps(document, indent=1)


def _count(checks: Sequence[Check], status: str) -> int:
    return sum(check.status == status for check in checks)
