"""Opens each page of the built site in Chromium, at the width of a desktop and of a phone.

    python tools/site/check.py --chromium /usr/bin/chromium build/site-docs [--screenshots FOLDER]

A page fails when it, or what is on it,
- asks anybody but this machine for something, or gets an error,
- writes an error to the console,
- is wider than the window (code and tables scroll by themselves),
- links to a page or an anchor that is not there.

Prints a line for each fault, and ends with 1 if there is any.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from local_server import serving
from playwright.sync_api import Browser, Page, TimeoutError, sync_playwright

WIDTHS = {"desktop": 1280, "phone": 390}
HEIGHT = 900
LIMIT = 120  # seconds until a page is there, on a machine that does something else too

_LINKS = "() => [...document.querySelectorAll('a[href]')].map(link => link.href)"
_ANCHORS = "() => [...document.querySelectorAll('[id], a[name]')].map(element => element.id || element.name)"
_WIDTH = "() => document.scrollingElement.scrollWidth"
_WIDEST = """width => [...document.querySelectorAll('article *')]
  .filter(element => element.getBoundingClientRect().right > width && !element.closest('pre, .md-typeset__scrollwrap'))
  .map(element => element.tagName + ': ' + element.textContent.slice(0, 60)).slice(0, 3)"""


class Site:
    """The site, and where it is served."""

    def __init__(self, folder: Path, address: str) -> None:
        self.folder = folder
        self.address = address
        self.pages = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.html"))
        # The C++ reference is Doxygen's, and 404.html is for a server's root.
        self.pages = [page for page in self.pages if page != "404.html" and not page.startswith("cpp/")]


def faults_of(browser: Browser, site: Site, screenshots: Path | None) -> Iterator[str]:
    links: dict[str, list[str]] = {}
    anchors: dict[str, set[str]] = {}
    for kind, width in WIDTHS.items():
        context = browser.new_context(viewport={"width": width, "height": HEIGHT})
        for name in site.pages:
            page = context.new_page()
            yield from (f"{name}, {kind}: {fault}" for fault in _open(page, site, name, width))
            links[name], anchors[name] = page.evaluate(_LINKS), set(page.evaluate(_ANCHORS))
            if screenshots:
                page.screenshot(path=screenshots / f"{kind}-{name.replace('/', '-')}.png")
            page.close()
        context.close()
    for name in site.pages:
        yield from (f"{name}: {fault}" for fault in _dead_links(site, links[name], anchors))


def _open(page: Page, site: Site, name: str, width: int) -> list[str]:
    faults: list[str] = []

    def look_at(request: Any) -> None:
        if not request.url.startswith((site.address, "data:", "blob:")):
            faults.append(f"asks {request.url}")

    page.on("request", look_at)
    page.on(
        "response", lambda answer: faults.append(f"{answer.status}: {answer.url}") if answer.status >= 400 else None
    )
    page.on("console", lambda line: faults.append(f"console: {line.text}") if line.type == "error" else None)
    page.on("pageerror", lambda error: faults.append(f"script: {error}"))
    try:
        page.goto(f"{site.address}/{name}", wait_until="networkidle", timeout=1000 * LIMIT)
    except TimeoutError:
        return [*faults, f"is not there after {LIMIT} s"]
    wide = page.evaluate(_WIDTH)
    if wide > width:
        faults.append(f"is {wide} pixels wide, in a window of {width}: {page.evaluate(_WIDEST, width)}")
    return faults


def _dead_links(site: Site, links: list[str], anchors: dict[str, set[str]]) -> Iterator[str]:
    for link in sorted({link for link in links if link.startswith(site.address)}):
        parts = urlsplit(link)
        target = unquote(parts.path).lstrip("/") or "index.html"
        if not (site.folder / target).is_file():
            yield f"links to {target}, which is not there"
        elif parts.fragment and target in anchors and unquote(parts.fragment) not in anchors[target]:
            yield f"links to {target}#{unquote(parts.fragment)}, which is not there"


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--chromium", required=True, help="the browser's path")
    parser.add_argument("--screenshots", type=Path, help="a folder for a picture of each page")
    args = parser.parse_args()
    if args.screenshots:
        args.screenshots.mkdir(parents=True, exist_ok=True)
    with serving(args.folder) as address, sync_playwright() as playwright:
        site = Site(args.folder, address)
        if not site.pages:
            print(f"{args.folder} has no pages")
            return 1
        browser = playwright.chromium.launch(executable_path=args.chromium, args=["--no-sandbox"])
        faults = list(faults_of(browser, site, args.screenshots))
        browser.close()
    print(*faults, sep="\n", end="\n" if faults else "")
    print(f"{len(site.pages)} pages opened {len(WIDTHS)} times each, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
