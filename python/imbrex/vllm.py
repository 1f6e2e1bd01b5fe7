"""
The drop-in for vLLM, as one of its general plug-ins: vLLM calls `register` in each of its processes before any work.

Example:
    IMBREX_VLLM=1 vllm serve MODEL -tp 4 --compilation-config '{"pass_config": {"fuse_gemm_comms": true}}'
"""

from __future__ import annotations

import os

from ._errors import InvalidInput

_registered = False


def register() -> None:
    """
    Calls `imbrex.torch.drop_in()`, once in a process, where the environment has IMBREX_VLLM=1; otherwise does nothing.

    Raises:
        InvalidInput: IMBREX_VLLM is neither 0 nor 1.

    Example:
        >>> import imbrex.vllm
        >>> imbrex.vllm.register()  # where IMBREX_VLLM is not set
    """
    global _registered
    asked = os.environ.get("IMBREX_VLLM", "")
    if asked not in ("", "0", "1"):
        raise InvalidInput(f"IMBREX_VLLM='{asked}': it must be 0 or 1")
    if asked != "1" or _registered:
        return
    from .torch import drop_in

    drop_in()
    _registered = True
