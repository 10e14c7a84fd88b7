"""What the build finds of the installed torch: where CUDA's packages have their headers and libraries."""

import pathlib
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).parents[2] / "plugin" / "find_torch.py"
TORCH = """
from types import SimpleNamespace
__version__ = "2.11.0"
version = SimpleNamespace(cuda={cuda!r})
_C = SimpleNamespace(_GLIBCXX_USE_CXX11_ABI=True)
"""
LAYOUTS = {
    "13.0": {"include": "cu13/include", "lib": "cu13/lib", "runtime": "libcudart.so.13"},
    "12.8": {"include": "cuda_runtime/include", "lib": "cuda_runtime/lib", "runtime": "libcudart.so.12"},
}


def install_torch(folder, cuda):
    (folder / "torch" / "include" / "tensorpipe").mkdir(parents=True)
    (folder / "torch" / "include" / "tensorpipe" / "tensorpipe.h").touch()
    (folder / "torch" / "__init__.py").write_text(TORCH.format(cuda=cuda))


def install_cuda(folder, layout):
    nvidia = folder / "nvidia"
    for file in (
        f"{layout['include']}/cuda_runtime_api.h",
        f"{layout['lib']}/{layout['runtime']}",
        "nccl/include/nccl.h",
    ):
        (nvidia / file).parent.mkdir(parents=True, exist_ok=True)
        (nvidia / file).touch()
    return nvidia


def found(folder):
    command = [sys.executable, "-S", str(SCRIPT)]
    result = subprocess.run(command, env={"PYTHONPATH": str(folder)}, capture_output=True, text=True, timeout=60)
    assert result.returncode == 0, result.stderr
    return dict(line.split("=", 1) for line in result.stdout.splitlines())


@pytest.mark.parametrize("cuda", LAYOUTS)
def test_cuda_is_found_in_the_packages_of_its_version(tmp_path, cuda):
    layout = LAYOUTS[cuda]
    install_torch(tmp_path, cuda)
    nvidia = install_cuda(tmp_path, layout)
    paths = found(tmp_path)
    assert paths["cuda_include"] == str(nvidia / layout["include"])
    assert paths["cuda_libraries"] == str(nvidia / layout["lib"])
    assert paths["cuda_runtime"] == layout["runtime"]
    assert paths["nccl_include"] == str(nvidia / "nccl" / "include")


@pytest.mark.parametrize("cuda", ["13.0", None])
def test_a_torch_without_cudas_packages_is_built_against_without(tmp_path, cuda):
    install_torch(tmp_path, cuda)
    assert not [key for key in found(tmp_path) if key.startswith(("cuda", "nccl"))]
