"""Puts builds of torchwire for several releases of torch into one wheel, whose metadata says which they are.

The parts are ordinary wheels, one for each build, for the same Python. What differs between them goes to a folder for
each build, from which torchwire.compatibility takes the right one on import; all else must be the same in all.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.version import Version
from wheel.wheelfile import WheelFile

FOLDER = "_builds"  # in the package
TABLE = "torchwire/_releases.py"

# What is made for one release of torch.
_OF_ONE_RELEASE = re.compile(r"torchwire/(_build\.py|[^/]+\.so)")


class BundleError(Exception):
    """The parts do not make a wheel; the text says why."""


def folder_of(built_for: str) -> str:
    """The folder with the build for that release, in the package: '_builds/torch_2_11_0'."""
    return f"{FOLDER}/torch_{built_for.replace('.', '_')}"


def ordered(releases: Iterable[str]) -> list[str]:
    """Oldest first."""
    return sorted(releases, key=Version)


def requirement(releases: Iterable[str]) -> str:
    """What a wheel for these releases of torch requires: 'torch<=2.13.0,>=2.11.0,!=2.12.*', say.

    A specifier cannot list releases, so it is a range without what is known to be missing. Patch releases within the
    range that come later are not known; the import refuses them.
    """
    versions = sorted(map(Version, releases))
    if not versions:
        raise BundleError("a wheel needs a build for at least one release of torch")
    minors = {version.release[:2] for version in versions}
    first, last = min(minors), max(minors)
    if first[0] != last[0]:
        raise BundleError(f"releases of torch {first[0]} and torch {last[0]} do not go into one wheel")
    clauses = [f">={versions[0]}", f"<={versions[-1]}"]
    for minor in range(first[1], last[1] + 1):
        patches = {version.micro for version in versions if version.release[:2] == (first[0], minor)}
        if not patches:
            clauses.append(f"!={first[0]}.{minor}.*")
            continue
        missing = set(range(max(patches))) - patches
        clauses += [
            f"!={first[0]}.{minor}.{patch}"
            for patch in sorted(missing)
            if Version(f"{first[0]}.{minor}.{patch}") > versions[0]
        ]
    return "torch" + ",".join(clauses)


def with_requirement(metadata: str, requires: str) -> str:
    """METADATA of a part, whose requirement is any torch, with this one instead."""
    changed, count = re.subn(r"(?m)^Requires-Dist: torch$", f"Requires-Dist: {requires}", metadata)
    if count != 1:
        raise BundleError(f"the part's metadata has {count} lines 'Requires-Dist: torch' in place of one")
    return changed


def table(built_for: Mapping[str, str]) -> str:
    """The module that says on import where the build for a release is. `built_for`: by release, the one it shares."""
    rows = "".join(f'    "{release}": "{folder_of(built_for[release])}",\n' for release in ordered(built_for))
    return (
        '"""By release of torch, the folder with the build of torchwire for it. Made by tools/wheels."""\n\n'
        f"FOLDERS = {{\n{rows}}}\n"
    )


def bundle(parts: Mapping[str, Path], built_for: Mapping[str, str], out: Path) -> Path:
    """Writes the wheel into the folder `out`, and returns its path.

    `parts` has the wheel of each build, by the release it was built for; `built_for` has for each release of torch that
    the wheel is for, which build is its.
    """
    releases = ordered(parts)
    contents = {release: _contents(parts[release]) for release in releases}
    common = {name: data for name, data in contents[releases[0]].items() if not _OF_ONE_RELEASE.fullmatch(name)}
    for release in releases[1:]:
        _require_same(common, contents[release], releases[0], release)

    out.mkdir(parents=True, exist_ok=True)
    path = out / parts[releases[0]].name
    with WheelFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        for name, data in common.items():
            if name.endswith(".dist-info/METADATA"):
                data = with_requirement(data.decode(), requirement(built_for)).encode()
            wheel.writestr(name, data)
        wheel.writestr(TABLE, table(built_for))
        for release in releases:
            for name, data in contents[release].items():
                if _OF_ONE_RELEASE.fullmatch(name):
                    file = name.removeprefix("torchwire/")
                    data = stripped(data) if file.endswith(".so") else data
                    wheel.writestr(f"torchwire/{folder_of(release)}/{file}", data)
    return path


def _contents(part: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(part) as wheel:
        names = [name for name in wheel.namelist() if not name.endswith(("/", ".dist-info/RECORD"))]
        contents = {name: wheel.read(name) for name in names}
    if not any(re.fullmatch(r"torchwire/_C\..*\.so", name) for name in contents):
        raise BundleError(f"{part} has no extension")
    return contents


def _require_same(common: Mapping[str, bytes], other: Mapping[str, bytes], one: str, another: str) -> None:
    rest = {name: data for name, data in other.items() if not _OF_ONE_RELEASE.fullmatch(name)}
    differing = sorted(name for name in common.keys() | rest.keys() if common.get(name) != rest.get(name))
    if differing:
        raise BundleError(
            f"the builds for torch {one} and torch {another} differ in {', '.join(differing)}: they were made from "
            "different sources; run tools/wheels for both again"
        )


def stripped(library: bytes) -> bytes:
    """A shared library without the symbols that only debuggers want."""
    with tempfile.NamedTemporaryFile(suffix=".so") as file:
        file.write(library)
        file.flush()
        subprocess.run(["strip", "--strip-unneeded", file.name], check=True)
        return Path(file.name).read_bytes()
