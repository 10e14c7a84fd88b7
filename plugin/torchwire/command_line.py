"""The command `python -m torchwire`: runs a program on torchwire, measures it, checks hosts, or describes it."""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import importlib.util
import os
import platform
import runpy
import sys
import zipfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from torchwire import _C, __version__, _build, device_report, replace_tensorpipe, standard_output
from torchwire.observe.trace import TRACE_VARIABLE, require_writable

_PROGRAM = "python -m torchwire"
_BAD_USAGE = 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Carries out the command line (default: the process's own) and returns the exit status.

    An exit or an exception of a program that it runs passes through to the caller. Standard output that cannot be
    written is an exit, too.
    """
    with standard_output.written(_PROGRAM):
        command = _parser().parse_args(arguments)
        if "program" not in command:
            return command.carry_out(command)
    return command.carry_out(command)  # whose standard output is the program's own


class _Parser(argparse.ArgumentParser):
    """A parser that may get its arguments when they are about to be parsed: bench's take a second to import."""

    def __init__(self, *, add_late: Callable[[argparse.ArgumentParser], None] | None = None, **settings: Any) -> None:
        super().__init__(**settings)
        self._add_late = add_late

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        if self._add_late is not None:
            self._add_late(self)
            self._add_late = None
        return super().parse_known_args(args, namespace)


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog=_PROGRAM, description="torchwire, an RPC backend for PyTorch")
    parser.add_argument("--version", action="version", version=f"torchwire {__version__}")
    commands = parser.add_subparsers(metavar="command", required=True)
    _add_run(commands)
    commands.add_parser(
        "bench",
        help="measure torchwire beside stock PyTorch and others",
        add_late=_arguments_of("torchwire.bench.command"),
    )
    commands.add_parser(
        "bench-devices",
        help="measure tensors of devices on torchwire beside stock PyTorch",
        add_late=_arguments_of("torchwire.bench.device_command"),
    )
    commands.add_parser(
        "doctor", help="check this machine, or measure between two", add_late=_arguments_of("torchwire.doctor.command")
    )
    commands.add_parser(
        "top", help="show the workers of this host or of a group, live", add_late=_arguments_of("torchwire.top.command")
    )
    commands.add_parser(
        "dump",
        help="print the calls under way and the stacks of the workers of this host or of a group",
        add_late=_arguments_of("torchwire.top.dump_command"),
    )
    commands.add_parser(
        "secret",
        help="make the file that holds a group's secret, or change it",
        add_late=_arguments_of("torchwire.secret_command"),
    )
    _add_trace(commands)
    info = commands.add_parser("info", help="print versions, devices, transports and channels")
    info.set_defaults(carry_out=_info)
    return parser


def _add_run(commands: argparse._SubParsersAction[_Parser]) -> None:  # pyright: ignore[reportPrivateUsage]
    run = commands.add_parser(
        "run",
        help="run a program with torchwire in the place of TENSORPIPE",
        usage=f"{_PROGRAM} run [-h] (script.py | -m module) [argument ...]",
        description="Runs a program, unchanged, with torchwire in the place of TENSORPIPE: "
        "in it and in all processes that it starts.",
    )
    _add_program(run)
    run.set_defaults(carry_out=_run)


def _add_program(command: argparse.ArgumentParser) -> None:
    command.add_argument("-m", dest="is_module", action="store_true", help="the program is a module, as for python -m")
    command.add_argument("program", help="path of a script, or name of a module")
    command.add_argument("arguments", nargs=argparse.REMAINDER, help="passed on to the program")


def _arguments_of(module: str) -> Callable[[argparse.ArgumentParser], None]:
    """What adds the arguments of a command that has a module of its own, which is imported only then."""

    def add(parser: argparse.ArgumentParser) -> None:
        importlib.import_module(module).add_arguments(parser)

    return add


def _add_trace(commands: argparse._SubParsersAction[_Parser]) -> None:  # pyright: ignore[reportPrivateUsage]
    trace = commands.add_parser(
        "trace",
        help="run a program and write a trace of all its calls",
        usage=f"{_PROGRAM} trace [-h] [-o FILE] (script.py | -m module) [argument ...]",
        description="Runs a program whose workers, this process and all that it starts, note their calls; the first "
        "of them writes the file at its graceful rpc.shutdown(). https://ui.perfetto.dev opens it.",
    )
    trace.add_argument("-o", dest="output", default="trace.json", help="the file to write (default trace.json)")
    _add_program(trace)
    trace.set_defaults(carry_out=_trace)


def _trace(command: argparse.Namespace) -> int:
    output = os.path.abspath(command.output)  # the program may change its folder
    try:
        require_writable(output)
    except OSError as error:
        print(f"{_PROGRAM} trace: {output!r} cannot be written: {error.strerror}", file=sys.stderr)
        return _BAD_USAGE
    os.environ[TRACE_VARIABLE] = output
    before = _state_of(output)
    status = 1
    try:
        status = _start(command, "trace")
    finally:  # the program may raise, or exit
        if status != _BAD_USAGE and _state_of(output) == before:
            status = 1
            print(
                f"{_PROGRAM} trace: no trace is written: the first worker does that at its graceful rpc.shutdown(), "
                "and there was none",
                file=sys.stderr,
            )
    return status


def _state_of(path: str) -> object:
    """By which one sees whether the file was written. What is no file, a terminal for one, is never as it was."""
    if not os.path.exists(path):
        return None
    found = os.stat(path)
    return (found.st_mtime_ns, found.st_size) if os.path.isfile(path) else object()


def _run(command: argparse.Namespace) -> int:
    return _start(command, "run", replace_tensorpipe)


def _start(command: argparse.Namespace, name: str, prepare: Callable[[], None] = lambda: None) -> int:
    problem = _module_problem(command.program) if command.is_module else _script_problem(command.program)
    if problem:
        print(f"{_PROGRAM} {name}: {problem}", file=sys.stderr)
        return _BAD_USAGE
    prepare()
    sys.argv = [command.program, *command.arguments]
    if command.is_module:
        # sys.path begins with the current folder already, because torchwire itself was started with -m.
        runpy.run_module(command.program, run_name="__main__", alter_sys=True)
    else:
        _start_path_at(command.program)
        # Absolute, as __file__ of a main script is: it must still lead there after a change of folder.
        runpy.run_path(os.path.abspath(command.program), run_name="__main__")
    return 0


def _script_problem(path: str) -> str | None:
    if not os.path.exists(path):
        return f"there is no script {path!r} in {os.getcwd()!r}; use -m to run a module by name"
    if not os.access(path, os.R_OK):
        return f"script {path!r} cannot be read; check its permissions"
    if os.path.isdir(path) and not os.path.exists(os.path.join(path, "__main__.py")):
        return f"folder {path!r} has no __main__.py to run"
    return None


def _module_problem(name: str) -> str | None:
    # Looked up beforehand, because an ImportError out of runpy could as well come from within the module.
    spec = _find(name)
    if spec is None:
        return f"there is no module {name!r}; leave -m out to run a script by its path"
    if spec.submodule_search_locations is not None and _find(f"{name}.__main__") is None:
        return f"{name!r} is a package without __main__; name one of its modules"
    return None


def _find(name: str) -> importlib.machinery.ModuleSpec | None:
    try:
        return importlib.util.find_spec(name)
    except ModuleNotFoundError as error:
        # A missing parent is a missing module; anything else is an import that fails inside a parent package.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            return None
        raise
    except ValueError:  # a name such as "." or ""
        return None


def _start_path_at(script: str) -> None:
    """Makes sys.path begin as `python script` would have it, instead of with the current folder."""
    if getattr(sys.flags, "safe_path", False):  # from Python 3.11 on: -P, which keeps both out
        return
    if os.path.isdir(script) or zipfile.is_zipfile(script):
        del sys.path[0]  # runpy puts the folder or archive there by itself
    else:
        sys.path[0] = os.path.dirname(os.path.realpath(script))


def _info(_command: argparse.Namespace) -> int:
    print(f"torchwire        {__version__}")
    print(f"built for torch  {_build.TORCH_VERSION}")
    print(f"installed torch  {torch.__version__}")
    print(f"Python           {platform.python_version()}")
    print(f"own CUDA code    {_yes_or_no(_build.CUDA)}")  # without it, tensors of devices travel by way of the host
    print(f"fault injection  {_yes_or_no(_build.FAULT_INJECTION)}")
    _print_table("devices", device_report.rows())
    _print_table("transports", _C.TRANSPORTS)
    _print_table("channels", _C.CHANNELS)
    return 0


def _print_table(title: str, rows: Mapping[str, str]) -> None:
    print(f"{title}:")
    width = max(map(len, rows), default=0)
    for name, description in rows.items():
        print(f"  {name:<{width}}  {description}")


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"
