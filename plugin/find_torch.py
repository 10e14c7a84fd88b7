"""Prints where the installed torch has its headers and libraries, as KEY=VALUE lines for meson."""

import pathlib
import sys


def main() -> int:
    try:
        import torch
    except ImportError as error:
        print(
            f"torchwire is built against the torch that is installed, but {sys.executable} cannot import it"
            f" ({error}). Install torch first, then run: pip install --no-build-isolation .",
            file=sys.stderr,
        )
        return 1
    root = pathlib.Path(torch.__file__).parent
    if not (root / "include" / "tensorpipe" / "tensorpipe.h").exists():
        print(
            f"the torch {torch.__version__} in {root} comes without TensorPipe's headers, which torchwire needs;"
            " install torch for Linux from PyPI",
            file=sys.stderr,
        )
        return 1
    print(f"version={torch.__version__}")
    print(f"root={root}")
    print(f"include={root / 'include'}")
    print(f"api_include={root / 'include' / 'torch' / 'csrc' / 'api' / 'include'}")
    print(f"libraries={root / 'lib'}")
    print(f"cxx11_abi={int(torch._C._GLIBCXX_USE_CXX11_ABI)}")
    if torch.version.cuda is not None:
        print_cuda(root, torch.version.cuda.split(".")[0])
    return 0


def print_cuda(root: pathlib.Path, major: str) -> None:
    """CUDA's headers and runtime, and NCCL's header, among the packages that a torch with CUDA depends on."""
    for package in (f"cu{major}", "cuda_runtime"):  # the latter up to CUDA 12, where each library has its own
        folder = root.parent / "nvidia" / package
        runtimes = sorted((folder / "lib").glob(f"libcudart.so.{major}*"))
        if runtimes and (folder / "include" / "cuda_runtime_api.h").exists():
            print(f"cuda_include={folder / 'include'}")
            print(f"cuda_libraries={folder / 'lib'}")
            print(f"cuda_runtime={runtimes[0].name}")
            break
    nccl = root.parent / "nvidia" / "nccl" / "include"
    if (nccl / "nccl.h").exists():
        print(f"nccl_include={nccl}")


if __name__ == "__main__":
    sys.exit(main())
