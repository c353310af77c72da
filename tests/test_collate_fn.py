"""A plain DataLoader: `collate_fn` of every method gives what the method makes of the collated batch."""

import pytest
import torch
from test_protocol import made
from torch.utils.data import DataLoader

from mixreg import ManifoldMixup
from mixreg.methods import described
from mixreg.methods.method import Augmentation


@pytest.mark.parametrize("name", described())
def test_a_loader_with_collate_fn_gives_what_the_method_makes_of_a_batch(name: str) -> None:
    method, x, _, _ = made(name)
    y = torch.tensor([0, 1, 1, 2, 1, 0, 1, 1])
    method.generator = torch.Generator().manual_seed(5)
    loader = DataLoader(list(zip(x, y, strict=True)), batch_size=3, collate_fn=method.collate_fn)
    found = list(loader)
    generator = torch.Generator().manual_seed(5)
    for rows, own, labels in zip(found, x.split(3), y.split(3), strict=True):
        expected = method.draw(own, labels, generator)
        assert len(rows) == len(expected)
        assert all(torch.equal(row, other) for row, other in zip(rows, expected, strict=True))
    if isinstance(method, Augmentation):
        # Dicts, whose other entries are passed on.
        method.inputs, method.targets, method.generator = "image", "label", torch.Generator().manual_seed(5)
        samples = [{"image": image, "label": label, "id": i} for i, (image, label) in enumerate(zip(x, y, strict=True))]
        for batch, rows in zip(DataLoader(samples, batch_size=3, collate_fn=method.collate_fn), found, strict=True):
            assert torch.equal(batch["image"], rows[0])
            assert torch.equal(batch["label"], rows[1])
            assert len(batch["id"]) == len(rows[0])


def test_what_draws_the_partners_of_hidden_layers_sees_the_labels() -> None:
    given = []

    def partners(y: torch.Tensor, generator: torch.Generator | None) -> torch.Tensor:
        given.append(y)
        return y.argsort()

    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0)), torch.tensor([2, 0, 1, 1, 0, 2])
    net = torch.nn.Linear(4, 3)
    method = ManifoldMixup([""], 1.0, 3, torch.Generator().manual_seed(1), partners=partners)
    _, soft = method(net, x, y)
    with ManifoldMixup([""], 1.0, 3, torch.Generator().manual_seed(1), partners=partners).mixing(net, x, y) as mixed:
        net(x)
    assert all(torch.equal(labels, y) for labels in given)
    assert torch.equal(soft, mixed)
    torch.testing.assert_close(soft.sum(1), torch.ones(6))
