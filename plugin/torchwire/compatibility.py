"""Checks that must pass before the extension is loaded: a mismatch found later is a crash, not a sentence."""

from __future__ import annotations

import importlib
import os
from collections.abc import Mapping, MutableSequence

_REINSTALL = "Reinstall it from its source folder, against the installed torch: pip install --no-build-isolation ."


def require_matching_torch(package_path: MutableSequence[str]) -> None:
    """Raises ImportError unless the installed torch is a release that torchwire was built for.

    A wheel has a build for each of several releases, in folders of their own: the right one is added to the path on
    which the package's modules are found.
    """
    import torch

    folders = _folders()
    if folders is not None:
        folder = folder_for(folders, str(torch.__version__))
        package_path.append(os.path.join(package_path[0], *folder.split("/")))
    build = _build()
    if folders is None:
        check_versions(build.VERSION, build.TORCH_VERSION, str(torch.__version__))
    if build.CUDA and torch.version.cuda is None:
        raise ImportError(
            f"torchwire {build.VERSION} was built with CUDA for torch {build.TORCH_VERSION}, "
            f"but the installed torch {torch.__version__} has no CUDA. {_REINSTALL}"
        )


def check_versions(own: str, built_for: str, installed: str) -> None:
    """Raises ImportError when the torch versions `built_for` and `installed` differ before the '+'.

    What follows the '+' names a variant of the same release (cpu, cu130, ...), with the same interface.
    """
    if public_part(built_for) == public_part(installed):
        return
    raise ImportError(
        f"torchwire {own} was built for torch {built_for}, but torch {installed} is installed. {_REINSTALL}"
    )


def folder_for(folders: Mapping[str, str], installed: str) -> str:
    """The folder with the build for the torch `installed`, by the table of a wheel; ImportError where it has none."""
    folder = folders.get(public_part(installed))
    if folder is not None:
        return folder
    releases = list(folders)  # oldest first
    raise ImportError(
        f"this wheel of torchwire is for torch {', '.join(releases)}, but torch {installed} is installed. Install one "
        f"of these, such as by pip install torch=={releases[-1]}, or build torchwire from its source folder, against "
        "the installed torch: pip install --no-build-isolation ."
    )


def public_part(version: str) -> str:
    """The version without its local label: '2.11.0' for '2.11.0+cu130'."""
    return version.partition("+")[0]


def require_rpc() -> None:
    """Imports torch.distributed.rpc, and raises ImportError when the installed torch was built without it.

    The extension extends classes which that module binds, so it cannot be loaded before.
    """
    import torch
    import torch.distributed.rpc as rpc

    if rpc.is_available() and hasattr(rpc, "TensorPipeAgent"):
        return
    raise ImportError(
        f"torchwire needs torch.distributed.rpc with TensorPipe, which the installed torch {torch.__version__} was "
        "built without. Install torch from PyPI (Linux), which has both."
    )


def require_extension() -> None:
    """Loads torchwire._C, and raises ImportError with a remedy when it is missing or does not load."""
    try:
        importlib.import_module("torchwire._C")
    except ImportError as error:
        raise ImportError(f"torchwire's extension does not load: {error}. {_REINSTALL}") from error


def _folders() -> Mapping[str, str] | None:
    """By release of torch, the folder with the build for it; None where torchwire was not installed from a wheel of
    tools/wheels."""
    try:
        return importlib.import_module("torchwire._releases").FOLDERS
    except ModuleNotFoundError:
        return None


def _build():
    try:
        return importlib.import_module("torchwire._build")
    except ModuleNotFoundError as error:
        raise ImportError(f"torchwire is not built: {error}. {_REINSTALL}") from error
