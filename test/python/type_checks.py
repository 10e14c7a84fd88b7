"""What pyright says of a user's program, which finds torchwire where this interpreter does."""

from __future__ import annotations

import collections
import json
import os
import pathlib
import subprocess
import sys


def complaints(folder: pathlib.Path, *programs: pathlib.Path) -> dict[str, dict[int, str]]:
    """For each program, by its name, the lines that are wrong in the mode "strict", counted from 1, and why."""
    settings = folder / "pyrightconfig.json"
    settings.write_text(json.dumps({"include": [str(path) for path in programs], "typeCheckingMode": "strict"}))
    command = [sys.executable, "-m", "basedpyright", "--project", str(settings), "--outputjson"]
    result = subprocess.run(
        [*command, "--pythonpath", sys.executable], cwd=folder, env=os.environ, capture_output=True, timeout=120
    )
    report = json.loads(result.stdout)
    assert report["summary"]["filesAnalyzed"] >= len(programs), report
    found: dict[str, dict[int, str]] = collections.defaultdict(dict)
    for each in report["generalDiagnostics"]:
        found[pathlib.Path(each["file"]).name][each["range"]["start"]["line"] + 1] = each["message"]
    return found
