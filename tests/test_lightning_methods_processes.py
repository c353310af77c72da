"""Methods of every kind in two real processes (DDP on gloo), against one process that averages both gradients."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.nn.functional import cross_entropy
from torch.utils.data import DistributedSampler

from mixreg import DataMoments, ManifoldMixup
from mixreg._support.random import stream_seed
from mixreg.methods import load_method
from mixreg.methods.method import Augmentation, Setting

pytest.importorskip("lightning.pytorch")
from test_lightning_methods import ALPHA, CLASSES, OPTIONS, data, loader, network

pytestmark = [pytest.mark.xdist_group("lightning")]

# A batch changed, with data's means; the network changed inside; a loss in the step's place; one that learns.
NAMES = ("choice", "gaussian", "manifold", "adaptive")
SCRIPT = """
import sys, warnings, torch, lightning.pytorch as pl
sys.path.insert(0, TESTS)
from test_lightning_methods import Images, callback_of, data
from torch.utils.data import DataLoader

folder = sys.argv[1]

class Halfway(pl.Callback):
    def on_train_epoch_end(self, trainer, module):
        if trainer.current_epoch == 0:
            trainer.save_checkpoint(f"{folder}/half.ckpt")

def fit(name, epochs, seed=3, ckpt_path=None, **more):
    module, callback = Images(), callback_of(name, seed=seed, **more)
    run = pl.Trainer(max_epochs=epochs, accelerator="cpu", devices=2, strategy="ddp", callbacks=[callback, Halfway()],
                     logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False)
    run.fit(module, DataLoader(data(), batch_size=4), DataLoader(data(), batch_size=4), ckpt_path=ckpt_path)
    return run, module, callback

if __name__ == "__main__":
    kept = {}
    for name in NAMES:
        kept[name] = fit(name, 2)[1].net.state_dict()
        kept[name + " resumed"] = fit(name, 2, 99, f"{folder}/half.ckpt")[1].net.state_dict()
    run, module, callback = fit("mixup", 1, fit=True)
    kept["fitted"] = [callback.fitted.strength, callback.fitted.temperature, callback.fitted.samples]
    kept["mixup"] = module.net.state_dict()
    torch.save(kept, f"{folder}/rank{run.global_rank}.pt")
"""


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> tuple[dict, dict]:
    folder = tmp_path_factory.mktemp("methods")
    script = folder / "two.py"
    script.write_text(SCRIPT.replace("TESTS", repr(str(Path(__file__).parent))).replace("NAMES", repr(NAMES)))
    run = subprocess.run(
        [sys.executable, str(script), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=240,
        check=False,
    )
    assert run.returncode == 0, run.stdout
    first, second = (torch.load(folder / f"rank{rank}.pt", weights_only=True) for rank in (0, 1))
    return first, second


def averaged(name: str, epochs: int) -> torch.nn.Module:
    """One process that takes every second sample in turn, with a generator for each, and averages both gradients."""
    net, moments = network(), DataMoments.from_loader(loader(), CLASSES)
    torch.manual_seed(stream_seed(3, "policy"))
    method = load_method(name).build(Setting(ALPHA, CLASSES, net, lambda: moments, OPTIONS.get(name, {})))
    generators = [torch.Generator().manual_seed(3 + rank) for rank in (0, 1)]
    optimizer = torch.optim.SGD(method.extended(net).parameters(), lr=0.1, momentum=0.9)
    x, y = data().tensors
    # Lightning shuffles the training data of several processes, from seed 0.
    samplers = [DistributedSampler(data(), 2, rank, shuffle=True, seed=0) for rank in (0, 1)]
    for step in range(epochs * 3):
        for sampler in samplers:
            sampler.set_epoch(step // 3)
        rows = [torch.tensor(list(sampler))[step % 3 * 4 :][:4] for sampler in samplers]
        optimizer.zero_grad()
        for own, generator in zip(rows, generators, strict=True):
            method.generator = generator
            if isinstance(method, Augmentation):
                mixed_x, mixed_y = method(x[own], y[own])
                loss = cross_entropy(net(mixed_x), mixed_y)
            elif isinstance(method, ManifoldMixup):
                loss = cross_entropy(*method(net, x[own], y[own]))
            else:
                loss = method(net, x[own], y[own])
            (loss / 2).backward()
        optimizer.step()
    return net


@pytest.mark.parametrize("name", NAMES)
def test_two_processes_train_as_one_would_with_both_gradients(both, name: str) -> None:
    expected = averaged(name, 2).state_dict()
    for kept in both:
        for key, value in expected.items():
            # Sums of two gradients are rounded otherwise.
            torch.testing.assert_close(kept[name][key], value, rtol=1e-5, atol=1e-6)
            assert torch.equal(kept[name + " resumed"][key], kept[name][key])


def test_two_processes_place_the_rule_by_the_held_out_data_of_both(both) -> None:
    import warnings

    from mixreg import Rescaled

    first, second = both
    assert first["fitted"] == second["fitted"]
    assert first["fitted"][2] == 24
    net = network()
    net.load_state_dict(first["mixup"])
    moments = DataMoments.from_loader(loader(), CLASSES)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        model = Rescaled(net, ALPHA, moments.x_mean, moments.y_mean).fit(*data().tensors)
    assert model.fitted is not None
    assert first["fitted"][:2] == pytest.approx([model.strength, model.fitted.temperature], rel=1e-4)
