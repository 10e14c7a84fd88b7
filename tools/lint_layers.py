"""Whether every folder uses only those that come before it, and no file uses itself in a roundabout way.

    python tools/lint_layers.py [--root FOLDER] [--build FOLDER]

The order of the folders is that of the subdir() lines of the root's meson.build; test/ may use all. With --build, the
objects of a finished build are looked at too: what a folder's objects leave undefined must be defined in a folder
before it. Python modules of plugin/ may import each other, but not in a circle. Prints each violation on a line of its
own, and ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import ast
import pathlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator

_SUBDIR = re.compile(r"^\s*subdir\('([^']+)'\)", re.MULTILINE)
_INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)

Graph = dict[str, set[str]]


def layers_of(root: pathlib.Path) -> list[str]:
    """The folders, each after those that it may use."""
    return [name for name in _SUBDIR.findall((root / "meson.build").read_text()) if not name.startswith("test/")]


def layer_of(path: str, layers: Iterable[str]) -> str | None:
    """The innermost of the folders that the file is in."""
    return max((layer for layer in layers if path.startswith(layer + "/")), key=len, default=None)


def sources_of(root: pathlib.Path, layers: Iterable[str]) -> Iterator[pathlib.Path]:
    tops = sorted({layer.split("/")[0] for layer in layers})
    for top in tops:
        for path in sorted((root / top).rglob("*")):
            if path.suffix in (".h", ".cpp"):
                yield path.relative_to(root)


def includes_of(root: pathlib.Path, source: pathlib.Path) -> list[str]:
    return [name for name in _INCLUDE.findall((root / source).read_text()) if (root / name).exists()]


# ---- includes ----


def upward_includes(root: pathlib.Path) -> Iterator[str]:
    layers = layers_of(root)
    for source in sources_of(root, layers):
        own = layer_of(str(source), layers)
        if own is None:
            yield f"{source}: is in no folder that meson.build names"
            continue
        for included in includes_of(root, source):
            layer = layer_of(included, layers)
            if layer is None or layers.index(layer) > layers.index(own):
                yield f"{source}: includes {included}, but {own} comes before {layer or 'it'}"


def include_graph(root: pathlib.Path) -> Graph:
    """A header and the file that implements it count as one."""
    graph: Graph = defaultdict(set)
    for source in sources_of(root, layers_of(root)):
        unit = str(source.with_suffix(""))
        graph[unit] |= {name.removesuffix(".h") for name in includes_of(root, source)} - {unit}
    return graph


# ---- Python ----


def import_graph(root: pathlib.Path) -> Graph:
    plugin = root / "plugin"
    paths = {_module_name(path.relative_to(plugin)): path for path in plugin.rglob("*.py")}
    return {name: set(_imports(ast.parse(path.read_text()), paths.keys())) - {name} for name, path in paths.items()}


def _module_name(path: pathlib.Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imports(tree: ast.Module, modules: Iterable[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [_imported(f"{node.module}.{alias.name}", modules) for alias in node.names]
        else:
            continue
        yield from (name for name in names if name in modules)


def _imported(name: str, modules: Iterable[str]) -> str:
    """What `from package import member` needs: the member, where it is a module or is built, else the package."""
    package, _, member = name.rpartition(".")
    return name if name in modules or member.startswith("_") else package


# ---- circles ----


def circles_in(graph: Graph) -> Iterator[str]:
    for component in _strong_components(graph):
        if len(component) > 1:
            yield f"a circle of {len(component)}: " + ", ".join(sorted(component))


def _strong_components(graph: Graph) -> list[list[str]]:
    """Those that reach each other. R. Tarjan, Depth-first search and linear graph algorithms, 1972."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    components: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            component = []
            while not component or component[-1] != node:
                component.append(stack.pop())
            components.append(component)

    for node in sorted(graph):
        if node not in index:
            visit(node)
    return components


# ---- symbols ----


def upward_symbols(root: pathlib.Path, build: pathlib.Path) -> Iterator[str]:
    layers = layers_of(root)
    defined: dict[str, str] = {}
    undefined: dict[str, dict[str, str]] = defaultdict(dict)
    for layer, path in _objects(build, layers):
        for kind, symbol in _symbols(path):
            if kind == "U":
                undefined[layer].setdefault(symbol, path.name)
            else:  # inline functions are defined in several: the first folder counts
                known = defined.setdefault(symbol, layer)
                if layers.index(layer) < layers.index(known):
                    defined[symbol] = layer
    if not defined:
        yield f"{build}: has no objects of these folders; is it a finished build?"
    for layer, symbols in undefined.items():
        for symbol, name in symbols.items():
            other = defined.get(symbol)
            if other is not None and layers.index(other) > layers.index(layer):
                yield f"{layer}: {name} needs {symbol} of {other}, which comes after it"


def _objects(build: pathlib.Path, layers: list[str]) -> Iterator[tuple[str, pathlib.Path]]:
    for path in sorted(build.rglob("*.o")):
        folder = str(path.relative_to(build).parent)
        if folder.startswith("plugin/"):  # meson writes ../autograd/engine.cpp as .._autograd_engine.cpp.o
            name = path.name.removeprefix(".._")
            if name == path.name:
                yield "plugin", path
                continue
            matching = [layer for layer in layers if name.startswith(layer.replace("/", "_") + "_")]
            yield max(matching, key=len), path
        else:
            layer = str(pathlib.PurePath(folder).parent)
            if layer in layers:
                yield layer, path


def _symbols(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    listing = subprocess.run(["nm", "--format=posix", path], capture_output=True, text=True, check=True).stdout
    for line in listing.splitlines():
        symbol, kind = line.split()[:2]
        if "9torchwire" in symbol:  # the namespace, as it is mangled
            yield kind, symbol


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=pathlib.Path, default=pathlib.Path(__file__).parents[1])
    parser.add_argument("--build", type=pathlib.Path, help="a finished build, whose symbols are looked at too")
    options = parser.parse_args()
    violations = [
        *upward_includes(options.root),
        *circles_in(include_graph(options.root)),
        *circles_in(import_graph(options.root)),
        *(upward_symbols(options.root, options.build) if options.build else ()),
    ]
    print(*violations, sep="\n", end="\n" if violations else "")
    return 1 if violations else 0


if __name__ == "__main__":
    sys.exit(main())
