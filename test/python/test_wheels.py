"""tools/wheels: what its wheels are called and require, and which build they load. The real thing is marked long."""

import importlib.util
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
import torch
from torchwire import compatibility

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "tools"))

if any(importlib.util.find_spec(name) is None for name in ("packaging", "wheel")):
    pytest.skip("tools/wheels needs packaging and wheel", allow_module_level=True)

import wheel_bundle  # noqa: E402
import wheel_parts  # noqa: E402
import wheels  # noqa: E402
from packaging.requirements import Requirement  # noqa: E402
from packaging.version import Version  # noqa: E402
from wheel.wheelfile import WheelFile  # noqa: E402

BUILT_FOR = {"2.11.0": "2.11.0", "2.12.0": "2.12.0", "2.12.1": "2.12.0", "2.13.0": "2.13.0"}


# ---- what a wheel requires ----


@pytest.mark.parametrize(
    ("releases", "text"),
    [
        (["2.11.0"], "torch>=2.11.0,<=2.11.0"),
        (["2.12.1", "2.11.0", "2.12.0"], "torch>=2.11.0,<=2.12.1"),
        (["2.11.0", "2.13.0"], "torch>=2.11.0,<=2.13.0,!=2.12.*"),
        (["2.11.0", "2.12.1"], "torch>=2.11.0,<=2.12.1,!=2.12.0"),
        (["2.12.1", "2.13.0"], "torch>=2.12.1,<=2.13.0"),
        (["2.9.0", "2.10.0"], "torch>=2.9.0,<=2.10.0"),
    ],
)
def test_the_requirement_is_the_range_of_releases_without_what_is_missing(releases, text):
    assert wheel_bundle.requirement(releases) == text


@pytest.mark.parametrize("releases", [wheels.RELEASES, ["2.11.0", "2.12.1", "2.14.0"]])
def test_of_the_known_releases_those_of_the_wheel_are_allowed_and_no_other(releases):
    allowed = Requirement(wheel_bundle.requirement(releases)).specifier
    others = {*wheels.RELEASES, "2.10.0", "2.16.0"} - set(releases)
    assert [release for release in releases if Version(release) not in allowed] == []
    assert Version(f"{releases[0]}+cu130") in allowed and Version(f"{releases[-1]}+cpu") in allowed
    assert [release for release in others if Version(release) in allowed] == []


@pytest.mark.parametrize(("releases", "why"), [([], "at least one"), (["1.13.0", "2.0.0"], "do not go into one wheel")])
def test_impossible_sets_of_releases_are_refused(releases, why):
    with pytest.raises(wheel_bundle.BundleError, match=why):
        wheel_bundle.requirement(releases)


# ---- what is in a wheel ----


@pytest.fixture
def extension(tmp_path):
    """A shared library to put into parts."""
    source = tmp_path / "library.c"
    source.write_text("int answer(void) { return 42; }\n")
    subprocess.run(["cc", "-g", "-shared", "-fPIC", "-o", tmp_path / "library.so", source], check=True)
    return (tmp_path / "library.so").read_bytes()


def make_part(folder, release, extension, *, module="", requires="torch"):
    folder.mkdir(parents=True)
    path = folder / "torchwire-0.1.0-cp311-cp311-linux_x86_64.whl"
    with WheelFile(path, "w") as part:
        part.writestr("torchwire/__init__.py", module)
        part.writestr("torchwire/_build.py", f"TORCH_VERSION = '{release}+cu130'\n")
        if extension:
            part.writestr("torchwire/_C.cpython-311-x86_64-linux-gnu.so", extension)
        part.writestr("torchwire-0.1.0.dist-info/METADATA", f"Name: torchwire\nRequires-Dist: {requires}\n")
    return path


def test_what_is_built_for_a_release_is_in_its_folder_and_all_else_once(tmp_path, extension):
    builds = ("2.11.0", "2.12.0", "2.13.0")
    parts = {release: make_part(tmp_path / release, release, extension) for release in builds}
    path = wheel_bundle.bundle(parts, BUILT_FOR, tmp_path / "out")
    assert path.name == "torchwire-0.1.0-cp311-cp311-linux_x86_64.whl"
    with WheelFile(path) as wheel:  # which checks the hashes in RECORD as it reads
        contents = {name: wheel.read(name) for name in wheel.namelist() if not name.endswith("RECORD")}
    table = {}
    exec(contents.pop("torchwire/_releases.py"), table)
    assert list(table["FOLDERS"]) == list(BUILT_FOR)
    for release, build in BUILT_FOR.items():
        made_for = contents[f"torchwire/{table['FOLDERS'][release]}/_build.py"].decode()
        assert made_for == f"TORCH_VERSION = '{build}+cu130'\n"
    assert sum(name.endswith("_C.cpython-311-x86_64-linux-gnu.so") for name in contents) == len(builds)
    assert [name for name in contents if name.count("/") == 1 and name.startswith("torchwire/")] == [
        "torchwire/__init__.py"
    ]
    assert b"Requires-Dist: torch>=2.11.0,<=2.13.0\n" in contents["torchwire-0.1.0.dist-info/METADATA"]


def test_libraries_are_stripped_and_keep_what_they_export(tmp_path, extension):
    (tmp_path / "stripped.so").write_bytes(wheel_bundle.stripped(extension))
    assert len(wheel_bundle.stripped(extension)) < len(extension)
    symbols = subprocess.run(["nm", "-D", tmp_path / "stripped.so"], capture_output=True, text=True, check=True).stdout
    assert " T answer\n" in symbols


def test_parts_made_from_different_sources_are_refused(tmp_path, extension):
    parts = {
        "2.11.0": make_part(tmp_path / "one", "2.11.0", extension),
        "2.12.0": make_part(tmp_path / "two", "2.12.0", extension, module="changed = True\n"),
    }
    with pytest.raises(wheel_bundle.BundleError, match=r"differ in torchwire/__init__\.py"):
        wheel_bundle.bundle(parts, {release: release for release in parts}, tmp_path / "out")


@pytest.mark.parametrize(
    ("fault", "why"), [({"requires": "torch>=2"}, "0 lines"), ({"extension": b""}, "no extension")]
)
def test_a_part_that_is_not_one_is_refused(tmp_path, extension, fault, why):
    part = make_part(tmp_path / "part", "2.11.0", **{"extension": extension, **fault})
    with pytest.raises(wheel_bundle.BundleError, match=why):
        wheel_bundle.bundle({"2.11.0": part}, {"2.11.0": "2.11.0"}, tmp_path / "out")


# ---- which releases share a build ----


def headers(folder, version, **contents):
    named = {
        "torch/headeronly/version.h": f"#define TORCH_VERSION_PATCH {version[-1]}\n#define KEPT 1\n",
        "torch/other.h": "int other;\n",
        **{name.replace("__", "/") + ".h": text for name, text in contents.items()},
    }
    for name, text in named.items():
        path = folder / version / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / version


def test_releases_with_the_same_headers_but_for_the_version_share_a_build(tmp_path):
    assert wheel_parts.same_headers(headers(tmp_path, "2.12.0"), headers(tmp_path, "2.12.1"))


@pytest.mark.parametrize(
    "change",
    [
        {"torch__other": "int changed;\n"},
        {"torch__new": ""},
        {"torch__headeronly__version": "#define TORCH_VERSION_PATCH 1\n#define KEPT 2\n"},
    ],
    ids=["changed", "new", "beside the version"],
)
def test_releases_with_other_headers_do_not(tmp_path, change):
    assert not wheel_parts.same_headers(headers(tmp_path, "2.12.0"), headers(tmp_path, "2.12.1", **change))


# ---- which build is loaded ----


def test_a_release_finds_the_build_that_it_shares_whatever_its_variant():
    folders = {release: wheel_bundle.folder_of(build) for release, build in BUILT_FOR.items()}
    assert compatibility.folder_for(folders, "2.12.1+cpu") == "_builds/torch_2_12_0"
    assert compatibility.folder_for(folders, "2.13.0") == "_builds/torch_2_13_0"


@pytest.mark.parametrize("installed", ["2.12.2", "2.10.0+cu130", "2.14.0.dev20260101"])
def test_a_release_without_a_build_is_refused_with_those_that_have_one(installed):
    all_but = re.escape(f"torch 2.11.0, 2.12.0, 2.12.1, 2.13.0, but torch {installed} is installed")
    with pytest.raises(ImportError, match=all_but) as why:
        compatibility.folder_for(BUILT_FOR, installed)
    assert "pip install torch==2.13.0" in str(why.value) and "--no-build-isolation" in str(why.value)


def test_the_build_for_the_installed_torch_comes_from_its_folder(tmp_path):
    """The package that is tested, laid out as in a wheel, in another process."""
    package = Path(compatibility.__file__).parent
    site = tmp_path / "site"
    release = compatibility.public_part(str(torch.__version__))
    folder = site / "torchwire" / wheel_bundle.folder_of(release)
    folder.mkdir(parents=True)
    build = Path(sys.modules["torchwire._build"].__file__).parent  # of a wheel it is a folder of its own
    for path in {*package.iterdir(), *build.iterdir()}:
        own = path.suffix == ".so" or path.name == "_build.py"
        if path.name not in ("_builds", "_releases.py"):
            (folder if own else site / "torchwire").joinpath(path.name).symlink_to(path)
    (site / "torchwire" / "_releases.py").write_text(wheel_bundle.table({release: release}))
    program = "import torchwire; from torchwire import _C, _build; print(_C.__file__); print(_build.__file__)"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env={"PYTHONPATH": f"{site}:{':'.join(sys.path)}"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert [Path(line).parent for line in done.stdout.splitlines()] == [folder, folder]


# ---- the table of results ----


def test_results_of_other_pythons_are_kept(tmp_path):
    results = wheels.Results(tmp_path / "results.json")
    results.put(wheels.Result("3.11", "2.15.0", "2.15.0", "torchwire.whl", passed=3))
    results.put(wheels.Result("3.10", "2.15.0", outcome="no torch 2.15.0 for Python 3.10"))
    again = wheels.Results(tmp_path / "results.json")
    again.put(wheels.Result("3.11", "2.9.0", outcome="FAILED: it did"))
    assert [(row["python"], row["torch"]) for row in json.loads((tmp_path / "results.json").read_text())] == [
        ("3.10", "2.15.0"),
        ("3.11", "2.9.0"),
        ("3.11", "2.15.0"),
    ]
    assert "| 3.11 | 2.15.0 | 2.15.0 | 0.0 s | 0.0 s |  | 3 passed, 0 skipped | passed |" in again.put()


# ---- the real thing ----


@pytest.mark.long
def test_a_wheel_is_built_and_passes_its_trial():
    """For this Python and the torch that is tested; takes as long as a build, and downloads that torch."""
    release = compatibility.public_part(str(torch.__version__))
    command = [ROOT / "tools" / "wheels", "--torch", release, "--python", sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3600)
    assert done.returncode == 0, done.stderr
    python = ".".join(map(str, sys.version_info[:2]))
    rows = {(row["python"], row["torch"]): row for row in json.loads((ROOT / "dist" / "results.json").read_text())}
    assert rows[python, release]["outcome"] == "passed" and rows[python, release]["passed"] > 50
    tag = f"cp{python.replace('.', '')}"
    (path,) = (ROOT / "dist").glob(f"torchwire-*-{tag}-{tag}-manylinux_*.whl")
    with zipfile.ZipFile(path) as wheel:
        assert "torchwire/py.typed" in wheel.namelist()
    (sdist,) = (ROOT / "dist").glob("torchwire-*.tar.gz")
    with tarfile.open(sdist) as archive:
        assert any(name.endswith("/plugin/torchwire/py.typed") for name in archive.getnames())
