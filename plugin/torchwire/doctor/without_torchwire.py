"""The doctor where torchwire cannot be imported, because torch is missing or another one: checks what needs neither.

The package's __init__ calls it when its import fails. What it imports may use neither torch nor the extension.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from torchwire.doctor import arguments, child, machine_checks, network_checks, report, secret_check, torch_check

_FAILED = 1


def run_if_asked(error: Exception) -> None:
    """Ends the process, with exit status 1, if it is `python -m torchwire doctor`; else returns."""
    if _is_doctor():
        sys.exit(_carry_out(sys.argv[2:], error))


def _is_doctor() -> bool:
    # While python -m looks for the module that it is to run, "-m" stands in that module's place.
    options = sys.orig_argv[1:]
    runs_torchwire = "-mtorchwire" in options or ("-m", "torchwire") in zip(options, options[1:])
    return runs_torchwire and getattr(sys, "argv", [])[:2] == ["-m", "doctor"]


def _carry_out(command_line: Sequence[str], error: Exception) -> int:
    parser = argparse.ArgumentParser(prog=arguments.PROGRAM)
    arguments.add(parser)
    command = parser.parse_args(command_line)
    child.fork_children()  # others could not import what they are to run
    checks = [torch_check.misfit(error)]
    if command.target is None:
        checks += [check() for check in (*machine_checks.ALL, *network_checks.ALL)]
    checks.append(secret_check.secret_file(command.secret_file))
    print(report.as_json(checks) if command.json else report.as_table(checks))
    return _FAILED
