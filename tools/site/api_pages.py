"""A hook of mkdocs: the pages of the API reference, with every public name of the packages, and the way to that of the
C++ sources."""

from __future__ import annotations

import ast
import os
import sys
from pathlib import Path

sys.path.insert(0, os.path.dirname(__file__))

import repository_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

PLUGIN = repository_pages.ROOT / "plugin"

_INTRODUCTIONS = {
    "torchwire": "Importing `torchwire` registers the backend `TORCHWIRE`. All that it offers beside that is here; "
    "calls, RRefs and autograd have PyTorch's own interface, in `torch.distributed.rpc` and `.autograd`.",
    "torchwire.testing": "Faults on purpose, in builds that have them: see [fault injection](../fault_injection.md).",
}

# As HTML, since mkdocs does not know of what Doxygen writes (tools/docs); the check in a browser follows it.
_CPP = """# C++

torchwire has no interface for C++ programs. For those who work on it, every class and function is in
<a href="../cpp/index.html">the C++ reference</a>, which Doxygen makes from the comments in the headers: the
<a href="../cpp/annotated.html">classes</a>, the <a href="../cpp/files.html">files</a> by folder. What the folders are
for is in [the architecture](../architecture.md), and what each thread may do in [threads](../threads.md).
"""


def public_names(package: str) -> list[str]:
    """`__all__` of the package, without names such as `__version__`."""
    tree = ast.parse((PLUGIN / Path(*package.split(".")) / "__init__.py").read_text(encoding="utf-8"))
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            return [name for name in ast.literal_eval(statement.value) if not name.startswith("__")]
    raise LookupError(f"{package} has no __all__")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for package, introduction in _INTRODUCTIONS.items():
        names = "\n\n".join(f"::: {package}.{name}" for name in public_names(package))
        page = f"# {package}\n\n{introduction}\n\n{names}\n"
        files.append(File.generated(config, f"api/{package.rpartition('.')[2]}.md", content=page))
    files.append(File.generated(config, "api/cpp.md", content=_CPP))
    return files
