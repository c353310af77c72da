"""Methods as training uses them: what goes together, which prediction rule belongs to which, what the command says."""

from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from runs import carry_out
from safetensors.torch import load_file

from mixreg import Rescaled
from mixreg.commands.train import train as command
from mixreg.cutmix import RescaledCutMix
from mixreg.data import digits
from mixreg.manifold import RescaledManifold, hidden_means
from mixreg.parseval import Parseval
from mixreg.smoothing import smooth_uniformly
from mixreg.streams import stream
from mixreg.training import METHODS, Config
from mixreg.training.batches import ArrayBatches
from mixreg.training.engine import Engine
from mixreg.training.loop import Unwatched
from mixreg.training.methods import make_method
from mixreg.training.prediction import rescaled_network
from mixreg.training.run import build_network, load_trained
from mixreg.training.run import train as train_run

SHORT = Config(data="digits", model="mlp", epochs=1, batch_size=500, lr=0.05, alpha=2.0)


def trained(tmp_path: Path, **changes):
    carry_out(replace(SHORT, **changes), tmp_path)
    return load_trained(tmp_path)


def test_uniform_smoothing_is_pytorch_s() -> None:
    torch.manual_seed(0)
    u, y = torch.randn(20, 5), torch.randint(5, (20,))
    expected = torch.nn.functional.cross_entropy(u, y, label_smoothing=0.2)
    torch.testing.assert_close(torch.nn.functional.cross_entropy(u, smooth_uniformly(y, 5, 0.2)), expected)
    with pytest.raises(ValueError, match=r"epsilon must lie in \[0, 1\], got 2"):
        smooth_uniformly(y, 5, 2)


@pytest.mark.parametrize("method", METHODS)
def test_labels_are_smoothed_before_any_mixing(method: str) -> None:
    batches = ArrayBatches(digits(), SHORT)
    batch = next(batches.epoch(0))
    config = replace(SHORT, method=method, label_smoothing=0.3)
    net = build_network(config, batches.shape, 10)
    rows = make_method(config, 10, batches.means, net).prepare(batch.x, batch.y, stream(0))
    # Where labels are among the rows, none of them is below ε / c, whatever is mixed.
    labels = [row for row in rows if row.shape == (len(batch.y), 10)][:1]
    assert labels
    if method not in ("approximate", "gaussian"):
        assert float(labels[0].min()) >= 0.03 - 1e-6
    torch.testing.assert_close(labels[0].sum(1), torch.ones(len(batch.y)))


def test_the_stored_mean_label_is_the_smoothed_one(tmp_path: Path) -> None:
    trained(tmp_path / "plain")
    trained(tmp_path / "smooth", label_smoothing=0.5)
    plain, smooth = (load_file(tmp_path / name / "model.safetensors")["y_mean"] for name in ("plain", "smooth"))
    torch.testing.assert_close(smooth, 0.5 * plain + 0.05)


def test_parseval_keeps_all_but_the_last_layer_orthonormal(tmp_path: Path) -> None:
    found = trained(tmp_path, parseval=0.5, epochs=3, batch_size=100, lr=0.001, weight_decay=0.0)
    keeper = Parseval(found.net, 0.5)
    assert keeper.deviation() < 0.02
    assert Parseval(trained(tmp_path / "free", epochs=3).net, 0.5).deviation() > 0.5


def test_parseval_holds_the_network_and_not_the_policy_beside_it(tmp_path: Path) -> None:
    found = trained(tmp_path, method="adaptive", parseval=0.5, epochs=3, batch_size=100, lr=0.001, weight_decay=0.0)
    assert Parseval(found.net.net, 0.5).deviation() < 0.02
    assert Parseval(found.net.policy.policy, 0.5).deviation() > 0.5


def test_every_method_has_the_rule_that_belongs_to_it(tmp_path: Path) -> None:
    batches = ArrayBatches(digits(), SHORT)
    x, (x_mean, y_mean) = batches.test[0][:7], (mean.float() for mean in batches.means())
    kinds = {"cutmix": RescaledCutMix, "manifold": RescaledManifold}
    for method in METHODS:
        config = replace(SHORT, method=method)
        net = build_network(config, batches.shape, 10)
        hidden = hidden_means(net, ["", "3"], [(batches.x, batches.y)]) if method == "manifold" else {}
        means = {"x_mean": x_mean, "y_mean": y_mean} | {f"hidden.{k}": v.float() for k, v in hidden.items()}
        model = rescaled_network(config, net, means)
        assert type(model) is kinds.get(method, Rescaled)
        if method in ("scaled", "regmixup", "adaptive"):
            assert torch.equal(model(x), net(x))
        if method == "inputs":
            keep = model.theta_mean
            torch.testing.assert_close(model(x), net(x_mean + keep * (x - x_mean)))
        if method == "outputs":
            torch.testing.assert_close(model(x), y_mean + (net(x) - y_mean) / model.theta_mean)
    with pytest.raises(ValueError, match="unknown parts 'labels'; known are both, inputs, outputs"):
        Rescaled(net, 1.0, x_mean, y_mean, parts="labels")


@pytest.mark.parametrize("method", ["manifold", "cutmix", "adaptive"])
def test_what_is_stored_predicts_as_what_was_trained(method: str, tmp_path: Path) -> None:
    found = trained(tmp_path, method=method, dropout=0.3, epochs=2)
    batches = ArrayBatches(digits(), found.config)
    logits = found.rescaled(batches.test[0])
    accuracy = float((logits.argmax(1) == batches.test[1]).float().mean())
    import json

    assert accuracy == pytest.approx(json.loads((tmp_path / "metrics.json").read_text())["rescaled"]["accuracy"])
    assert torch.equal(logits, found.rescaled(batches.test[0]))


def test_manifold_mixes_where_it_is_told(tmp_path: Path) -> None:
    stored = trained(tmp_path, method="manifold", layers=("input", "3"))
    assert {key for key in load_file(tmp_path / "model.safetensors") if key.startswith("hidden")} == {
        "hidden.",
        "hidden.3",
    }
    assert stored.rescaled.layers == ["", "3"]


def test_help_names_every_method() -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    for method in METHODS:
        assert f"  {method} " in shown


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "scaled", "alpha": 1.0}, "scaled needs alpha above 1"),
        ({"parseval": 0.7}, r"parseval must lie in \[0, 0\.5\], got 0\.7"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1"),
        ({"layers": ("1",)}, "layers are for method manifold, got them with mixup"),
        ({"weight": -1.0}, "weight must be a number of at least 0, got -1"),
        ({"samples": -1}, "samples must be at least 0, got -1"),
    ],
)
def test_wrong_settings_are_refused(changes: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(SHORT, **changes)


def test_wrong_layers_and_too_many_samples_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the network has no layer 'conv9'; it has 0, 1"):
        carry_out(replace(SHORT, method="manifold", layers=("conv9",)), tmp_path / "run")
    with pytest.raises(ValueError, match="leaves too few to train on 5000"):
        carry_out(replace(SHORT, samples=5000), tmp_path / "run")
    with pytest.raises(ValueError, match="no dense or convolutional layers"):
        carry_out(replace(SHORT, model="random-features", parseval=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_manifold_in_double_precision(tmp_path: Path) -> None:
    config, engine = replace(SHORT, method="manifold"), Engine(accelerator="cpu", precision="64-true")
    assert train_run(config, tmp_path, engine, lambda *_: nullcontext(Unwatched()))


def test_runs_from_before_some_fields_were_known_can_be_read() -> None:
    old = SHORT.to_json()
    for field in ("weight", "layers", "label_smoothing", "dropout", "parseval", "samples"):
        del old[field]
    assert Config.from_json(old) == SHORT
    with pytest.raises(ValueError, match="a run's configuration has the fields"):
        Config.from_json(SHORT.to_json() | {"temperature": 3})


def test_temperature_scaling_is_an_option(tmp_path: Path) -> None:
    arguments = ["--accelerator", "cpu", "--quiet", "--epochs", "8", "--out", str(tmp_path), "--temperature"]
    refused = CliRunner().invoke(command, [*arguments, "--holdout", "0"])
    assert "--temperature needs data that is held out" in refused.output
    assert CliRunner().invoke(command, arguments).exit_code == 0
    import json

    metrics = json.loads((tmp_path / "metrics.json").read_text())
    for name in ("plain", "rescaled"):
        assert metrics[f"{name}, tempered"]["accuracy"] == pytest.approx(metrics[name]["accuracy"])
        assert metrics[f"{name}, tempered"]["cross_entropy"] < metrics[name]["cross_entropy"]
    # The same command again finds everything done.
    assert "was done before" in CliRunner().invoke(command, arguments).output
