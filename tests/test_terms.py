"""Figure 3: the terms of Theorem 3 of a training run, against what they are on the whole training set."""

import json
import math
import shutil
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch

from mixreg import DataMoments, risk
from mixreg.data.loading import load
from mixreg.experiments import lenet_runs, regulariser_runs, terms, trained
from mixreg.experiments.moments import EARLIER, NOTE, moments_of
from mixreg.experiments.registry import EXPERIMENTS, KINDS
from mixreg.experiments.reproduce import draw, reproduce
from mixreg.experiments.results import Results
from mixreg.experiments.sweep import Workers
from mixreg.training.array_batches import ArrayBatches
from mixreg.training.config import Config
from mixreg.training.trained import load_trained

RESULTS = Path(__file__).parents[1] / "results"
CONFIG = {"data": "digits", "model": "mlp", "method": "mixup", "epochs": 1, "lr": 0.05, "seed": 1}
NAMES = ("base", "r1", "r2", "r3", "r4", "total")


def carry_out(folder: Path, settings: dict, config: dict = CONFIG) -> tuple[dict, ArrayBatches, torch.nn.Module]:
    asked = {"config": config, "rescale": [1.0], "terms": {"epochs": [config["epochs"]], **settings}}
    result = KINDS["training"](asked, folder, lambda done: None)
    net = load_trained(folder)
    return (
        result["log"][-1]["terms"],
        ArrayBatches(load(config["data"]), Config(**config), like=net.preparation),
        net.net,
    )


def test_terms_are_those_of_the_whole_training_set(tmp_path: Path) -> None:
    """40 samples of 64 coordinates: on their own, least squares would pass through each of them."""
    found, batches, net = carry_out(tmp_path / "whole", {"samples": 40, "moments": "training set"})
    # Every sample at once: what the first ones contribute to it.
    whole = risk.quadratic(net, batches.scaled(batches.x), batches.y, 1.0)
    for name in NAMES:
        part = whole.per_sample[name][:40].mean() if name != "total" else None
        expected = sum(found[key] for key in NAMES[:-1]) if part is None else float(part)
        assert found[name] == pytest.approx(expected, rel=1e-4, abs=1e-5), name
    alone, _, _ = carry_out(tmp_path / "alone", {"samples": 40})
    with pytest.warns(UserWarning, match="40 samples of 64 coordinates"):
        own = risk.quadratic(net, batches.scaled(batches.x[:40]), batches.y[:40], 1.0)
    assert alone["r1"] == pytest.approx(float(own.r1), rel=1e-4)
    # Not the same thing.
    assert abs(alone["r1"] - found["r1"]) > 0.1


def test_moments_are_of_images_as_the_network_sees_them(tmp_path: Path) -> None:
    """Scaled, without augmentation, without what is held out."""
    config = Config(data="digits-32", model="lenet", holdout=0.3, augment="standard", seed=2)
    batches = ArrayBatches(load("digits-32"), config)
    found = moments_of({"moments": "training set"}, batches, 10)
    seen = batches.preparation.pixels.scaled(batches.x).double().flatten(1)
    assert found.count == len(batches.y) < len(load("digits-32").train.y)
    torch.testing.assert_close(found.x_mean.flatten(), seen.mean(0), rtol=0, atol=1e-9)
    torch.testing.assert_close(found.xx, torch.cov(seen.T, correction=0), rtol=0, atol=1e-9)


def test_moments_are_computed_once_per_run(tmp_path: Path, monkeypatch) -> None:
    calls = []
    monkeypatch.setattr(trained, "moments_of", lambda *given: calls.append(given) or moments_of(*given))
    config = CONFIG | {"epochs": 3}
    asked = {"samples": 20, "epochs": [1, 2, 3], "moments": "training set"}
    KINDS["training"]({"config": config, "rescale": [1.0], "terms": asked}, tmp_path / "run", lambda done: None)
    assert len(calls) == 1


def test_a_fresh_reproduction_uses_them_and_stored_plans_keep_their_runs(tmp_path: Path) -> None:
    for name in ("terms", "approximation", "confidence", "regularizers"):
        experiment = EXPERIMENTS[name]
        sizes = experiment.sizes_at("smoke")
        asked = [run.settings.get("terms") or run.settings.get("look") for run in experiment.runs(sizes)]
        assert {one["moments"] for one in asked if one} == {"training set"}
        assert "of the whole training set" in terms.caption(sizes) if name == "terms" else True
        before = experiment.runs({**sizes, **EARLIER})
        assert not any("moments" in str(run.settings) for run in before)
        assert "taken as a training set of their own" in terms.caption({**lenet_runs.sizes_at("smoke"), **EARLIER})
    assert "of the whole training set" in regulariser_runs.caption(regulariser_runs.sizes_at("smoke"))
    found = reproduce(["terms"], "smoke", tmp_path, Workers(threads=1), lambda progress: None)
    assert not found.undrawn
    records = json.loads((tmp_path / "results.json").read_text())
    assert {record["settings"]["terms"]["moments"] for record in records} == {"training set"}
    page = (tmp_path / "report.html").read_text()
    assert "R1 + R3" in page
    assert NOTE in page


def test_stored_terms_are_drawn_with_a_word_about_them(tmp_path: Path) -> None:
    for name in ("results.json", "experiments.json"):
        shutil.copy(RESULTS / name, tmp_path / name)
    assert not draw(tmp_path).undrawn
    page = (tmp_path / "report.html").read_text()
    for name in ("terms", "regularizers"):
        chapter = page[page.index(f'<section id="{name}"') :].partition("</section>")[0]
        assert "training samples, taken as a training set of their own" in chapter
        assert NOTE in chapter
        assert "--set moments=samples</code>" in chapter
        assert ">R1 + R3</th>" in chapter


@dataclass
class Finished:
    settings: dict

    @property
    def key(self) -> str:
        return str(self.settings)

    kind: str = "training"


def test_the_table_has_the_sum_and_says_where_terms_do_not_exist() -> None:
    """R1 and R3 of a network so confident that 1/p overflows are not numbers; their sum is one."""
    record = {"base": 1.0, "r1": None, "r2": 0.25, "r3": None, "r4": 0.5, "total": 2.0}
    runs = [
        (Finished({"config": {"data": "digits", "method": method, "seed": seed}}), {"log": [{"terms": record}]})
        for method in ("mixup", "erm", "modified")
        for seed in range(3)
    ]
    sizes = lenet_runs.sizes_at("smoke") | {"epochs": 1, "looks": 1}
    table = terms.table(Results(runs), sizes)
    row = dict(zip(table.columns, table.rows[0], strict=True))
    assert row["R1 + R3"] == "0.25 ± 0"
    assert row["R1 + … + R4"] == "1 ± 0"
    assert row["R1 alone"] == row["R3 alone"] == "–"
    assert "1/p" in table.note
    left, middle, right = terms.figure(Results(runs), sizes).axes
    # Three networks each; terms, which have a sign, beside a line at 0.
    assert [len(axes.lines) for axes in (left, middle, right)] == [4, 4, 3]


def test_confident_networks_leave_results_that_can_be_kept(tmp_path: Path) -> None:
    """No NaN, which JSON does not know, and no warning."""
    config = Config(**CONFIG)
    batches = ArrayBatches(load("digits"), config)
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
    with torch.no_grad():
        net[1].weight.copy_(1e5 * torch.randn(10, 64, generator=torch.Generator().manual_seed(0)))
    trainer = type("Trainer", (), {"net": net, "config": config, "batches": batches})()
    moments = moments_of({"moments": "training set"}, batches, 30)
    assert isinstance(moments, DataMoments)
    values = trained.term_values(trainer, batches, 30, moments)
    assert values["r1"] is None
    assert values["r3"] is None
    assert math.isfinite(values["total"])
