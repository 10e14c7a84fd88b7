"""The table on the whole screen, look after look."""

from __future__ import annotations

import time

from torchwire.top import keys, screen
from torchwire.top.page import Page
from torchwire.top.view import View


def show(view: View) -> int:
    """Until q is pressed."""
    console = screen.console()
    from rich.live import Live

    view.look()
    first = 0
    due = 0.0
    with keys.pressed() as wait, Live(console=console, screen=True, auto_refresh=False) as shown:
        while True:
            if time.monotonic() >= due:
                view.look()
                due = time.monotonic() + view.interval
            page = Page(view.rows(), view.title(), console.width, console.height, first)
            shown.update(page.renderable(), refresh=True)
            first = page.first
            for key in wait(max(0.0, due - time.monotonic())):
                if key == keys.END:
                    return 0
                if key == "s":
                    view.sort_by_next()
                elif key == "r":
                    view.reverse()
                elif key == keys.DOWN:
                    first += 1
                elif key == keys.UP:
                    first = max(0, first - 1)
