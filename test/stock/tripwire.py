"""The tripwire: shows which functions of libtorch that torchwire does without are called all the same.

A library that is preloaded into processes (tripwire.cpp, built here) notes calls of libtorch's methods for messages of
RRefs and autograd, and of the ways into libtorch's engine (tripwire_symbols.h), in a file: its trips.

Imports no torch.
"""

import ctypes
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build/tripwire"


class BuildError(Exception):
    """The library could not be built."""


def is_possible():
    return platform.machine() == "x86_64"


def build():
    """The path of the library, which is up to date then. Not for two processes at a time."""
    if not (BUILD / "build.ninja").exists():
        _meson("setup", str(BUILD), "--buildtype=release", "-Dcore_only=true")
    _meson("compile", "-C", str(BUILD), "tripwire")
    return BUILD / "test/stock/libtripwire.so"


def environment(library, file):
    """What a process has to see, from its start, so that its trips and those of its children go to `file`."""
    preloaded = os.environ.get("LD_PRELOAD")
    return {
        "LD_PRELOAD": f"{library}:{preloaded}" if preloaded else str(library),
        "TORCHWIRE_TRIPWIRE_FILE": str(file),
    }


def watched(library):
    """The symbols that it watches, each with the library of torch that has it."""
    tripwire = ctypes.CDLL(str(library))
    for name in ("symbol", "library"):
        function = getattr(tripwire, f"tripwire_{name}")
        function.argtypes, function.restype = [ctypes.c_size_t], ctypes.c_char_p
    count = ctypes.c_size_t.in_dll(tripwire, "tripwire_count").value
    return {
        tripwire.tripwire_symbol(index).decode(): tripwire.tripwire_library(index).decode() for index in range(count)
    }


class Trips:
    """Reads the file of a library that is preloaded. Not thread-safe."""

    def __init__(self, path):
        self._path = Path(path)
        self._read = 0

    def new(self):
        """The symbols of the functions that were called since it was last asked, sorted."""
        if not self._path.exists():
            return []
        with open(self._path) as file:
            file.seek(self._read)
            lines = file.readlines()
            self._read = file.tell()
        return sorted({line.split()[0] for line in lines})


def readable(symbol):
    """Its qualified name, without arguments: rpc::RequestCallbackNoPython::processMessage."""
    names, rest = [], re.sub("^_ZNK?", "", symbol)
    while length := re.match("[0-9]+", rest):
        end = length.end() + int(length[0])
        names.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join(names).removeprefix("torch::distributed::")


def _meson(*arguments):
    # Meson and ninja of this Python's environment, if it has them.
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    done = subprocess.run(
        ["meson", *arguments],
        cwd=ROOT,
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        raise BuildError(done.stdout + done.stderr)
