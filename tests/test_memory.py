"""Memory that is used again, and only when nobody holds it."""

import os
import subprocess
import sys

import numpy as np
import pytest
import torch

from mixreg import Mixup
from mixreg._support.memory import WORTHWHILE_BYTES, Recycler


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_blocks_keep_type_and_layout_and_come_back(dtype: torch.dtype) -> None:
    recycler = Recycler()
    like = torch.empty(4, 8, 512, 256, dtype=dtype).to(memory_format=torch.channels_last)
    assert like.nbytes >= WORTHWHILE_BYTES
    first = recycler.empty_like(like)
    view = first.fill_(1.0)[1:]
    second = recycler.empty_like(like)
    assert (second.dtype, second.shape, second.stride()) == (like.dtype, like.shape, like.stride())
    second.fill_(2.0)
    assert bool((view == 1).all())
    place = second.data_ptr()
    del second
    assert recycler.empty_like(like).data_ptr() == place
    assert recycler.empty_like(like[:, :, :256]).shape == (4, 8, 256, 256)


def test_memory_is_not_reused_while_anyone_holds_it() -> None:
    mixup = Mixup(1.0, generator=torch.Generator().manual_seed(0))
    x = torch.randn(64, 160, 160, dtype=torch.float64)
    y = torch.zeros(64)
    first, _ = mixup(x, y)
    kept = first.clone()
    second, _ = mixup(x, y)
    assert torch.equal(first, kept)
    view = second[3, ::2].detach()
    kept_view = view.clone()
    address = second.data_ptr()
    del second
    third, _ = mixup(x, y)
    assert torch.equal(view, kept_view)
    assert third.data_ptr() != address
    array = third.numpy()
    kept_array = array.copy()
    del third
    fourth, _ = mixup(x, y)
    np.testing.assert_array_equal(array, kept_array)
    weight = torch.ones(160, dtype=torch.float64, requires_grad=True)
    total = (fourth @ weight).sum()
    expected = fourth.sum((0, 1))
    del fourth
    fifth, _ = mixup(x, y)
    # The graph kept the fourth batch for its backward pass.
    total.backward()
    torch.testing.assert_close(weight.grad, expected)
    address = fifth.data_ptr()
    del fifth
    assert mixup(x, y)[0].data_ptr() == address


FORK = """
import os, signal, threading, warnings
import torch
from mixreg._support.memory import Recycler

recycler, like = Recycler(), torch.empty(1 << 20)
held, release = threading.Event(), threading.Event()

def hold():
    with recycler._lock:
        # What a thread leaves that is interrupted between its two lines.
        recycler._block = recycler._block[:0]
        recycler._layout = (like.dtype, like.shape, like.stride())
        held.set()
        release.wait()

thread = threading.Thread(target=hold)
thread.start()
held.wait()
warnings.simplefilter("ignore", DeprecationWarning)
child = os.fork()
if child == 0:
    signal.alarm(30)
    first = recycler.empty_like(like).fill_(1.0)
    os._exit(0 if first.shape == like.shape and float(first.sum()) == 1 << 20 else 3)
status = os.waitpid(child, 0)[1]
release.set()
thread.join()
print(status)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="nothing is forked here")
def test_a_fork_does_not_inherit_a_held_lock() -> None:
    done = subprocess.run([sys.executable, "-c", FORK], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0"
