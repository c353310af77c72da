"""Methods as training uses them: what goes together, which prediction rule belongs to which, what the command says."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from runs import carry_out
from safetensors.torch import load_file

from mixreg._autodiff.layers import first_layers
from mixreg._support.random import stream
from mixreg.commands.train import train as command
from mixreg.data import digits
from mixreg.losses.targets import to_values
from mixreg.methods import described
from mixreg.prediction.hidden import RescaledManifold, hidden_means
from mixreg.prediction.rescaled import RescaledCutMix
from mixreg.regularisers.label_smoothing import smooth_uniformly
from mixreg.regularisers.parseval import Parseval
from mixreg.training import Config
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.build import build_method, build_network
from mixreg.training.engine import Engine
from mixreg.training.run import train as train_run
from mixreg.training.trained import load_trained

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


@pytest.mark.parametrize("method", described())
def test_labels_are_smoothed_before_any_mixing(method: str) -> None:
    batches = ArrayBatches(digits(), SHORT)
    batch = next(batches.epoch(0))
    config = replace(SHORT, method=method, label_smoothing=0.3)
    net = build_network(config, batches.shape, 10)
    values = smooth_uniformly(to_values(batch.y, 10), 10, 0.3)
    rows = build_method(config, net, 10, batches.moments).draw(batch.x, values, stream(0))
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
    assert Parseval(found.net, 0.5).deviation() < 0.02
    assert Parseval(found.method.policy, 0.5).deviation() > 0.5


def test_every_method_predicts_with_the_rule_that_belongs_to_it() -> None:
    batches = ArrayBatches(digits(), SHORT)
    moments = batches.moments()
    x, x_mean, y_mean, keep = batches.test[0][:7], moments.x_mean.float(), moments.y_mean.float(), 0.6875
    found = {}
    for name in described():
        config = replace(SHORT, method=name)
        net = build_network(config, batches.shape, 10)
        method = build_method(config, net, 10, batches.moments)
        further = method.further_means(net, [(batches.x, batches.y)])
        found[name] = method.compared(net, moments, further)(x)
    shrunk, plain = net(x_mean + keep * (x - x_mean)), net(x)
    stretched = [y_mean + (u - y_mean) / keep for u in (shrunk, plain)]
    # ERM and label smoothing show Mixup's rule as a control.
    for name in ("mixup", "approximate", "gaussian", "modified", "independent", "mixupe", "erm", "smoothing"):
        torch.testing.assert_close(found[name], stretched[0])
    for name in ("scaled", "adaptive"):
        assert torch.equal(found[name], plain)
    # With weight 1, Mixup applied with probability ½.
    kept = (1 + keep) / 2
    half = net(x_mean + kept * (x - x_mean))
    torch.testing.assert_close(found["regmixup"], y_mean + (half - y_mean) / kept)
    torch.testing.assert_close(found["inputs"], shrunk)
    torch.testing.assert_close(found["outputs"], stretched[1])
    torch.testing.assert_close(found["cutmix"], RescaledCutMix(net, 2.0, x_mean, y_mean)(x))
    hidden = {k: v.float() for k, v in hidden_means(net, first_layers(net), [(batches.x, batches.y)]).items()}
    torch.testing.assert_close(found["manifold"], RescaledManifold(net, 2.0, hidden, y_mean)(x))


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
    stored = trained(tmp_path, method="manifold", options={"layers": ("input", "3")})
    assert {key for key in load_file(tmp_path / "model.safetensors") if key.startswith("hidden")} == {
        "hidden.",
        "hidden.3",
    }
    assert stored.rescaled.layers == ["", "3"]


def test_help_names_every_method() -> None:
    shown = CliRunner().invoke(command, ["--help"]).output
    for method in described():
        assert f"  {method} " in shown


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"parseval": 0.7}, r"parseval must lie in \[0, 0\.5\], got 0\.7"),
        ({"dropout": 1.0}, r"dropout must lie in \[0, 1\), got 1"),
        ({"options": {"layers": ("1",)}}, "method mixup has no option 'layers'; it has probability, per_sample"),
        ({"method": "manifold", "options": {"weight": 1.0}}, "method manifold has no option 'weight'; it has layers"),
        ({"samples": -1}, "samples must be a number of at least 0, got -1"),
    ],
)
def test_wrong_settings_are_refused(changes: dict, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        replace(SHORT, **changes)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"method": "scaled", "alpha": 1.0}, "ScaledMixup needs alpha above 1"),
        ({"method": "regmixup", "options": {"weight": -1.0}}, "weight must be a number of at least 0, got -1"),
    ],
)
def test_what_a_method_refuses_leaves_nothing_behind(changes: dict, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=sentence):
        carry_out(replace(SHORT, **changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_options_that_are_defaults_are_the_same_run() -> None:
    assert Config(method="regmixup", options={"weight": 1.0}) == Config(method="regmixup")
    config = Config(method="manifold", options={"layers": ["input", "3"]})
    assert Config.from_json(config.to_json()) == config
    assert config.options == {"layers": ("input", "3")}


def test_wrong_layers_and_too_many_samples_leave_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the network has no layer 'conv9'; it has 0, 1"):
        carry_out(replace(SHORT, method="manifold", options={"layers": ("conv9",)}), tmp_path / "run")
    with pytest.raises(ValueError, match="leaves too few to train on 5000"):
        carry_out(replace(SHORT, samples=5000), tmp_path / "run")
    with pytest.raises(ValueError, match="no dense or convolutional layers"):
        carry_out(replace(SHORT, model="random-features", parseval=0.1), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_manifold_in_double_precision(tmp_path: Path) -> None:
    config, engine = replace(SHORT, method="manifold", precision="64-true"), Engine(accelerator="cpu")
    assert train_run(config, tmp_path, engine)


def test_runs_from_before_some_fields_were_known_can_be_read() -> None:
    old = SHORT.to_json()
    for field in ("options", "label_smoothing", "dropout", "parseval", "samples"):
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
