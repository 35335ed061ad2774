"""Runs only in an environment of its own, with torchvision and timm beside a CPU torch (``make test-vision``).

torchvision asks at import for two operators that its compiled part defines, and that part does not load beside a CPU
torch. Declaring them makes the models usable; the operators themselves (non-maximum suppression) stay without a body.
"""

import importlib.util

import torch

collect_ignore = []

if importlib.util.find_spec("torchvision") is None or importlib.util.find_spec("timm") is None:
    collect_ignore.append("test_vision.py")
elif not hasattr(torch.ops.torchvision, "nms"):
    # Kept at module level: the definitions live as long as this object.
    LIBRARY = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        LIBRARY.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
