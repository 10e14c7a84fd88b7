"""A hook of mkdocs: adds the READMEs that lie beside the sources to the pages, and the site's own style sheet."""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

SITE = Path(__file__).resolve().parent
ROOT = SITE.parents[1]
_FOLDERS = ["autograd", "rref", "cuda", "plugin", "test"]


def pages() -> dict[str, Path]:
    """For each page that is added, its name in the site, and its file."""
    files = [path for folder in _FOLDERS for path in sorted((ROOT / folder).rglob("README.md"))]
    named = {f"repository/{'-'.join(path.relative_to(ROOT).parent.parts)}.md": path for path in files}
    return {"repository/readme.md": ROOT / "README.md", **named}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, path in {**pages(), "site.css": SITE / "site.css"}.items():
        files.append(File.generated(config, name, abs_src_path=str(path)))
    return files
