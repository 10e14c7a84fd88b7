"""A hook of mkdocs: links that are right in the repository are made right in the site.

A page links to files beside its own in the repository. Where the target is a page of the site, the link leads to that;
where it is a source file, which is not in the site, the link's text stays. Where the target does not exist the link
is left as it is, and mkdocs complains.
"""

from __future__ import annotations

import os
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.path.dirname(__file__))

import repository_pages

DOCS = repository_pages.ROOT / "docs"

# Code, which stays as it is, or a link or an image: mark, text, target, anchor.
_LINK = re.compile(
    r"^ *```.*?^ *```$|`[^`\n]+`(?!\])|(!?)\[((?:[^\[\]]|`[^`]*`)*)\]\(([^)\s#]+)(#[^)\s]*)?\)", re.M | re.S
)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = page.file.abs_src_path
    if source is None:  # made by another hook
        return markdown
    return rewritten(markdown, Path(source).resolve(), page.file.src_uri)


def rewritten(markdown: str, source: Path, uri: str) -> str:
    """`markdown` of the file `source`, as the page `uri` has to have it."""

    def replacement(match: re.Match[str]) -> str:
        mark, text, target, anchor = match.groups()
        if target is None or re.match(r"[a-z]+:", target):
            return match[0]
        path = (source.parent / target).resolve()
        if path.exists() and (there := _uri_of(path)) is None:
            return text
        elif not path.exists():
            return match[0]
        return f"{mark}[{text}]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}{anchor or ''})"

    return _LINK.sub(replacement, markdown)


def _uri_of(path: Path) -> str | None:
    """The name in the site, if the file is there."""
    for uri, page in repository_pages.pages().items():
        if page == path:
            return uri
    return path.relative_to(DOCS).as_posix() if path.is_file() and path.is_relative_to(DOCS) else None
