"""The extension loads with a CPU-only torch: it asks for no library of CUDA, and for nothing that only those have."""

import re
import subprocess
from pathlib import Path

import pytest
import torch
from torchwire import _C

LIBRARIES = Path(torch.__file__).parent / "lib"

# What each build of torch has, and Debian.
ALLOWED = re.compile(
    r"libtorch(_python|_cpu)?\.so|libc10\.so|libstdc\+\+\.so\.6|libgcc_s\.so\.1"
    r"|lib(c|m|dl|rt|pthread)\.so\.\d|ld-linux-[-\w]+\.so\.\d|libpython3.*"
)


def lines_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()


def undefined(path):
    """The symbols that the dynamic linker has to find elsewhere."""
    return {line.split()[-1].partition("@")[0] for line in lines_of("nm", "-D", "--undefined-only", path)}


def defined(path):
    return {line.split()[-1].partition("@")[0] for line in lines_of("nm", "-D", "--defined-only", path)}


def test_no_library_of_cuda_is_needed():
    needed = [line.split("[")[1].rstrip("]") for line in lines_of("readelf", "-d", _C.__file__) if "(NEEDED)" in line]
    assert "libtorch_cpu.so" in needed
    assert [name for name in needed if not ALLOWED.fullmatch(name)] == []


def test_nothing_is_needed_that_only_libraries_of_cuda_have():
    with_cuda = [path for name in ("libtorch_cuda.so", "libc10_cuda.so") if (path := LIBRARIES / name).exists()]
    if not with_cuda:
        pytest.skip("this torch is a CPU-only one, and the extension is loaded")
    in_any_torch = set().union(
        *(defined(LIBRARIES / name) for name in ("libtorch_cpu.so", "libtorch_python.so", "libc10.so"))
    )
    only_with_cuda = set().union(*map(defined, with_cuda)) - in_any_torch
    # Also what the C++ library has is instantiated there, under the same names.
    wanted = {symbol for symbol in undefined(_C.__file__) if re.search("torch|c10|2at|tensorpipe", symbol)}
    assert sorted(wanted & only_with_cuda) == []
    assert sorted(symbol for symbol in wanted if re.search("(?<![0-9])4(cuda|nccl)[0-9]", symbol)) == []
