"""The command line `python -m torchwire doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable

from torchwire import option_checks
from torchwire.doctor import (
    arguments,
    child,
    client,
    machine_checks,
    network_checks,
    reachability,
    report,
    secret_check,
    store_check,
    torch_check,
    worker_check,
)
from torchwire.doctor.arguments import DEFAULT_WORKERS, PROGRAM, SERVE
from torchwire.doctor.check import FAILED, Check, failed
from torchwire.doctor.server import Server
from torchwire.printable import printable

_FAILED = 1
_BAD_USAGE = 2
_INTERRUPTED = 130  # as shells say for SIGINT
_OF_SERVER = ("host", "port", "once")
_OF_MACHINE = ("init_method", "workers")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    arguments.add(parser)
    parser.set_defaults(carry_out=carry_out)


def carry_out(command: argparse.Namespace) -> int:
    """Carries out the command and returns the exit status."""
    try:
        _refuse_misplaced(command)
        if command.target == SERVE:
            return _serve(command)
        checks = _machine_checks(command) if command.target is None else _pair_checks(command)
        return _report(checks, command.json)
    except ValueError as error:
        print(f"{PROGRAM}: {error}", file=sys.stderr)
        return _BAD_USAGE
    except KeyboardInterrupt:  # who had started children has ended them
        return _INTERRUPTED


def _refuse_misplaced(command: argparse.Namespace) -> None:
    others = () if command.target == SERVE else _OF_SERVER
    others += () if command.target is None else _OF_MACHINE
    for name in others:
        if getattr(command, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with {command.target or 'checks of this machine'}"
            )
    if command.json and command.target == SERVE:
        raise ValueError("--json does not go with serve, which prints lines as they come")


def _machine_checks(command: argparse.Namespace) -> list[Check]:
    workers = DEFAULT_WORKERS if command.workers is None else command.workers
    if workers < 1:
        raise ValueError(f"--workers is {workers}; it has to be at least 1")
    limit = worker_check.lift_file_limit()
    child.prepare()
    single = (
        torch_check.fitting_torch,
        *machine_checks.ALL,
        *network_checks.ALL,
        lambda: secret_check.secret_file(command.secret_file),
    )
    checks = [each for check in single for each in _checked(lambda: [check()])]
    checks += _checked(lambda: worker_check.checks_of(limit, workers))
    if command.init_method is not None:
        checks += store_check.checks_of(command.init_method)
    return checks


def _pair_checks(command: argparse.Namespace) -> Iterable[Check]:
    place = reachability.place_of(command.target)
    worker_check.lift_file_limit()
    child.prepare()
    secret = secret_check.secret_file(command.secret_file)
    yield secret
    if secret.status != FAILED:
        yield from client.checks_of(place, command.secret_file)


def _checked(check: Callable[[], list[Check]]) -> list[Check]:
    """What is wrong in a way that no check expects must not keep the others from being seen."""
    try:
        return check()
    except Exception as error:
        return [failed("doctor", f"a check ended with {type(error).__name__}: {error}", "report it to torchwire")]


def _report(checks: Iterable[Check], as_json: bool) -> int:
    done = list(checks)
    print(report.as_json(done) if as_json else printable(report.as_table(done)))
    return _FAILED if any(check.status == FAILED for check in done) else 0


def _serve(command: argparse.Namespace) -> int:
    _check_address(command)
    secret = secret_check.secret_file(command.secret_file)
    if secret.status == FAILED:
        print(report.as_table([secret]))
        return _FAILED
    worker_check.lift_file_limit()
    child.prepare()
    try:
        server = Server(command.host, command.port or 0, command.secret_file, _say)
    except OSError as error:
        print(f"{PROGRAM} serve: cannot listen: {error.strerror or error}", file=sys.stderr)
        return _FAILED
    _say(f"listening on {server.place}")
    try:
        while True:
            is_well = server.serve_one()
            if command.once:
                return 0 if is_well else _FAILED
    except KeyboardInterrupt:
        return 0


def _check_address(command: argparse.Namespace) -> None:
    if command.port is not None and not 0 <= command.port <= option_checks.HIGHEST_PORT:
        raise ValueError(f"--port is {command.port}; it has to be from 0, for any, to {option_checks.HIGHEST_PORT}")
    if command.host is not None:
        reachability.check_host("--host", command.host)


def _say(text: str) -> None:
    print(printable(text), flush=True)
