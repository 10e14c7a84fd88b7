"""The command line `python -m torchwire doctor`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable

from torchwire.doctor import (
    child,
    client,
    machine_checks,
    network_checks,
    reachability,
    report,
    secret_check,
    store_check,
    worker_check,
)
from torchwire.doctor.check import FAILED, Check, failed
from torchwire.doctor.server import Server

_PROGRAM = "python -m torchwire doctor"
_FAILED = 1
_BAD_USAGE = 2
_SERVE = "serve"
_OF_SERVER = ("host", "port", "once")
_OF_MACHINE = ("init_method", "workers")
_DEFAULT_WORKERS = 8


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = f"{_PROGRAM} [-h] [serve | HOST:PORT] [option ...]"
    parser.description = (
        "Checks what torchwire needs of this machine, or, with a server on another one, measures calls between them. "
        "Exit status: 0 if nothing failed, 1 if a check failed, 2 for bad usage."
    )
    parser.add_argument(
        "target",
        nargs="?",
        metavar="serve | HOST:PORT",
        help="wait for other machines, or measure with the one that does; without it this machine is checked",
    )
    parser.add_argument("--secret-file", metavar="FILE", help="the group's secret, as the option secret_file")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    machine = parser.add_argument_group("this machine")
    machine.add_argument(
        "--init-method", metavar="URL", help="check this store: tcp://HOST:PORT, file://PATH or env://"
    )
    machine.add_argument(
        "--workers", type=int, metavar="N", help=f"of the group that is to run here (default {_DEFAULT_WORKERS})"
    )
    serve = parser.add_argument_group(_SERVE)
    serve.add_argument("--host", help="address to listen on (default: that of the first interface that is up)")
    serve.add_argument("--port", type=int, help="TCP port to listen on (default: any)")
    serve.add_argument("--once", action="store_true", default=None, help="end after one client")
    parser.set_defaults(carry_out=carry_out)


def carry_out(command: argparse.Namespace) -> int:
    """Carries out the command and returns the exit status."""
    try:
        _refuse_misplaced(command)
        if command.target == _SERVE:
            return _serve(command)
        checks = _machine_checks(command) if command.target is None else _pair_checks(command)
        return _report(checks, command.json)
    except ValueError as error:
        print(f"{_PROGRAM}: {error}", file=sys.stderr)
        return _BAD_USAGE


def _refuse_misplaced(command: argparse.Namespace) -> None:
    others = () if command.target == _SERVE else _OF_SERVER
    others += () if command.target is None else _OF_MACHINE
    for name in others:
        if getattr(command, name) is not None:
            raise ValueError(
                f"--{name.replace('_', '-')} does not go with {command.target or 'checks of this machine'}"
            )
    if command.json and command.target == _SERVE:
        raise ValueError("--json does not go with serve, which prints lines as they come")


def _machine_checks(command: argparse.Namespace) -> list[Check]:
    workers = _DEFAULT_WORKERS if command.workers is None else command.workers
    if workers < 1:
        raise ValueError(f"--workers is {workers}; it has to be at least 1")
    limit = worker_check.lift_file_limit()
    child.prepare()
    single = (
        machine_checks.torch_version,
        machine_checks.memory_file,
        machine_checks.unix_sockets,
        machine_checks.reading_memory,
        machine_checks.threads,
        network_checks.network_interfaces,
        network_checks.loopback,
        network_checks.ipv6,
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
    print(report.as_json(done) if as_json else report.as_table(done))
    return _FAILED if any(check.status == FAILED for check in done) else 0


def _serve(command: argparse.Namespace) -> int:
    secret = secret_check.secret_file(command.secret_file)
    if secret.status == FAILED:
        print(report.as_table([secret]))
        return _FAILED
    worker_check.lift_file_limit()
    child.prepare()
    try:
        server = Server(command.host, command.port or 0, command.secret_file, _say)
    except OSError as error:
        print(f"{_PROGRAM} serve: cannot listen: {error.strerror or error}", file=sys.stderr)
        return _FAILED
    _say(f"listening on {server.place}")
    try:
        while True:
            is_well = server.serve_one()
            if command.once:
                return 0 if is_well else _FAILED
    except KeyboardInterrupt:
        return 0


def _say(text: str) -> None:
    print(text, flush=True)
