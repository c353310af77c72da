"""Memory that is used again, and only when nobody holds it."""

import pytest
import torch

from mixreg import Mixup
from mixreg.memory import Recycler


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_zeros_are_zeros_again(dtype: torch.dtype) -> None:
    recycler = Recycler()
    first = recycler.zeros((3, 5), dtype)
    place = first.data_ptr()
    first += 1
    view = first[1:]
    second = recycler.zeros((3, 5), dtype)
    assert second.data_ptr() != place
    assert bool((view == 1).all())
    del first, view, second
    third = recycler.zeros((3, 5), dtype)
    assert third.dtype == dtype
    assert float(third.abs().max()) == 0.0
    assert recycler.zeros((2, 2), dtype).shape == (2, 2)


def test_wide_labels_that_are_kept_stay_as_they_are() -> None:
    mix = Mixup(1.0, 1000, generator=torch.Generator().manual_seed(0))
    x, y = torch.rand(16, 3), torch.arange(16) * 60
    kept = [mix(x, y)[1] for _ in range(4)]
    copies = [labels.clone() for labels in kept]
    for _ in range(4):
        mix(x, y)
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))
    place = mix(x, y)[1].data_ptr()
    assert mix(x, y)[1].data_ptr() == place
    # What somebody did to labels before they let go of them is gone.
    mix(x, y)[1].fill_(7.0)
    torch.testing.assert_close(mix(x, y)[1].sum(1), torch.ones(16))
