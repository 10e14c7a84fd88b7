"""Clang's thread safety analysis of everything that includes no torch.

    python tools/lint_locks.py --include FOLDER [--root FOLDER]

The annotations are those of backend/base/annotations.h; what includes no torch are the folders whose meson.build makes
a static library. FOLDER is that of torch's headers, TensorPipe's among them. Prints what Clang says, and ends with 1 if
it says anything.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from lint_layers import layers_of

_COMMAND = ["clang++", "-std=c++20", "-fsyntax-only", "-I.", "-Wthread-safety", "-Werror"]


def sources_of(root: pathlib.Path) -> Iterator[pathlib.Path]:
    for layer in layers_of(root):
        if "static_library(" in (root / layer / "meson.build").read_text():
            yield from sorted((root / layer).glob("*.cpp"))


def complaints_about(source: pathlib.Path, root: pathlib.Path, include: pathlib.Path) -> str:
    command = [*_COMMAND, "-isystem", include, source.relative_to(root)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    parser.add_argument("--include", type=pathlib.Path, required=True, help="the folder of torch's headers")
    options = parser.parse_args()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        sources = list(sources_of(options.root))
        complaints = list(pool.map(lambda one: complaints_about(one, options.root, options.include), sources))
    print(*filter(None, complaints), sep="\n", end="")
    return 1 if any(complaints) or not sources else 0


if __name__ == "__main__":
    sys.exit(main())
