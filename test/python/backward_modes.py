"""The two ways to run a backward pass, as options of a group."""

import torchwire

SMART = {"backward_mode": "smart"}
FAST = {"backward_mode": "fast"}

# A build that knows no modes runs every pass the fast way.
if "backward_mode" not in torchwire.TorchwireRpcBackendOptions.__init__.__kwdefaults__:
    SMART = FAST = {}
