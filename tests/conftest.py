"""What every test shares: no global random state leaks from one to another, and threads are few."""

from __future__ import annotations

import os

import pytest
import torch
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch.set_num_threads(1)

# The same examples in every run, so that a check of an unchanged tree gives an unchanged answer. To look for new ones:
# LISSE_EXAMPLES=new make test
settings.register_profile("lisse", derandomize=os.environ.get("LISSE_EXAMPLES") != "new", deadline=None)
settings.load_profile("lisse")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # a library may have changed it, and on a busy machine small networks then crawl
