"""What `python -m torchwire info` says of devices. Nothing of CUDA is initialized for it."""

from __future__ import annotations

import ctypes

import torch

NVML = "libnvidia-ml.so.1"
_MAX_VERSION = 96  # bytes of the driver's version, more than NVML needs (NVML_SYSTEM_DRIVER_VERSION_BUFFER_SIZE, 80)


def rows() -> dict[str, str]:
    """By name: torch's CUDA, the driver, how many CUDA devices this process sees, and another accelerator, if any."""
    driver = driver_version()
    return {
        "CUDA of torch": torch.version.cuda or "none: a CPU-only torch",
        "NVIDIA driver": driver or f"none: {NVML} is missing or finds no device",
        "CUDA devices": str(_count(driver)),
        **_other_accelerator(),
    }


def driver_version() -> str | None:
    """As NVML, the driver's library for monitoring, says it; None where there is no driver."""
    version = ctypes.create_string_buffer(_MAX_VERSION)
    try:
        nvml = ctypes.CDLL(NVML)
        if nvml.nvmlInit_v2() != 0 or nvml.nvmlSystemGetDriverVersion(version, _MAX_VERSION) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return version.value.decode()


def _count(driver: str | None) -> int:
    # Without NVML, torch would ask the CUDA runtime, which initializes the driver.
    return torch.cuda.device_count() if torch.version.cuda and driver else 0


def _other_accelerator() -> dict[str, str]:
    """That of PyTorch's PrivateUse1, or what else a build of torch is for."""
    accelerator = torch.accelerator.current_accelerator()
    if accelerator is None or accelerator.type == "cuda":
        return {}
    return {f"{accelerator.type} devices": str(torch.accelerator.device_count())}
