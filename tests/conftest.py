import os

# Tests share the cores, and some have threads beside those of others: a thread that waits sleeps, it does not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import pytest
import torch
from hypothesis import settings

# Two cores: a deadline would test the machine, not the code. Derandomised so that a failure can be repeated.
settings.register_profile("mixreg", deadline=None, derandomize=True, max_examples=60)
settings.load_profile("mixreg")


@pytest.fixture
def generator() -> torch.Generator:
    return torch.Generator().manual_seed(20220101)
