"""How this torchwire was built: what Meson makes of _build.py.in."""

VERSION: str
TORCH_VERSION: str
CUDA: bool
FAULT_INJECTION: bool
