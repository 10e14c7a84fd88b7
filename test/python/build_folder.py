"""The folder that tools/setup builds in, for what is built only when a test needs it."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[2]


class BuildError(Exception):
    """The target could not be built."""


def path() -> Path:
    """That of this Python and torch."""
    version = torch.__version__.split("+")[0]
    return ROOT / "build" / f"{sys.implementation.cache_tag}-torch-{version}"


def build(target: str) -> None:
    """The target, by its name in a meson.build, is up to date then."""
    # Of this Python's environment, if it has it. Ninja, since Meson does not see targets that are new.
    search = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    with open(path() / "test_support.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # pytest may run more than once at a time
        done = subprocess.run(
            ["ninja", "-C", str(path()), target],
            env={**os.environ, "PATH": search},
            capture_output=True,
            text=True,
        )
    if done.returncode != 0:
        raise BuildError(done.stdout + done.stderr)
