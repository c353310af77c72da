"""`mixreg terms`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from mixreg._support.extras import require_package
from mixreg.commands.choices import own_code_options
from mixreg.commands.errors import one_line_errors
from mixreg.commands.terminal import PathType, printable, shown

if TYPE_CHECKING:
    from mixreg.training.terms_monitor import TermsMonitor

# Rows of the table: what a person calls a measure.
_ROWS = {
    "base": "loss on modified data",
    "joint": "R1 + R3",
    "r1": "R1",
    "r3": "R3",
    "r2": "R2",
    "r4": "R4",
    "total": "quadratic risk",
    "mixup": "Mixup risk (Monte Carlo)",
    "jacobian": "‖∇f‖",
    "alignment": "cosine of ∇f and J⁽ⁱ⁾",
    "accuracy_plain": "accuracy, plain",
    "accuracy_rescaled": "accuracy, rescaled",
    "ece_plain": "ECE, plain",
    "ece_rescaled": "ECE, rescaled",
}


@click.command()
@click.argument("run", required=False, type=PathType(exists=True, path_type=Path))
@click.option(
    "--network",
    metavar="MODULE:FACTORY",
    show_default="the run's",
    help="Instead of a run, a network: a callable that returns it.",
)
@click.option(
    "--data",
    type=PathType(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE.npz",
    show_default="the run's",
    help="Its data: arrays x (n × …, floating point) and y (n labels, or n × … targets).",
)
@click.option("--alpha", type=float, show_default="the run's, or 1", help="Mixup's α.")
@click.option("--samples", default=1000, show_default=True, help="Training samples to measure on, the first ones.")
@click.option("--tangents", default=8, show_default=True, help="Directions per sample; 0 for exact terms.")
@click.option(
    "--out",
    type=PathType(dir_okay=False, path_type=Path),
    show_default="RUN/terms.png",
    help="The picture.",
)
@own_code_options
@click.option("--json", "as_json", is_flag=True, help="Print the measures as JSON.")
@one_line_errors
def terms(
    run: Path | None,
    network: str | None,
    data: Path | None,
    alpha: float | None,
    samples: int,
    tangents: int,
    out: Path | None,
    model: str | None,
    method: str | None,
    as_json: bool,
) -> None:
    """What Mixup regularises in a network: the loss on modified data and the terms R1 … R4 of Theorem 3.

    Beside them the Mixup risk itself, the size of the network's Jacobian, and accuracy and calibration, plain and
    rescaled, all on training samples. The picture shows them over epochs where the run was trained with --terms-every.

    \b
    Examples:
      mixreg terms runs/digits
      mixreg terms runs/digits --samples 200 --tangents 0 --json
      mixreg terms --network my_package.models:make_net --data my_data.npz \\
          --alpha 0.5 --out terms.png
    """
    if (run is None) == (network is None) or (network is None) != (data is None):
        raise click.UsageError("Give a RUN, or --network with --data.")
    if samples < 2 or tangents < 0 or tangents == 1:
        raise click.UsageError("--samples must be at least 2, and --tangents 0 or at least 2.")
    require_package("matplotlib", "the picture")
    from mixreg.training.watched_terms import finite

    history: list[dict[str, float]] = []
    count = tangents or None
    if run is not None:
        net, monitor, history = _of_run(run, alpha, samples, count, model, method)
        out = out or run / "terms.png"
    else:
        assert network is not None
        assert data is not None
        net, monitor = _of_network(network, data, 1.0 if alpha is None else alpha, samples, count)
    found = monitor.measure(net)
    if as_json:
        click.echo(json.dumps(finite(found), indent=1, allow_nan=False))
    else:
        _print(found, len(monitor.x), monitor.alpha)
    if out is not None:
        _draw(out, history or [{"at": 1.0} | found])
        click.echo(printable(f"Picture: {out}"), err=as_json)


def _of_run(
    run: Path, alpha: float | None, samples: int, tangents: int | None, model: str | None, method: str | None
) -> tuple[Any, TermsMonitor, list[dict[str, float]]]:
    """The network of a run, a monitor on its data, and what its log holds of terms."""
    from dataclasses import replace

    from mixreg.evaluation.runs import own_batches
    from mixreg.training.run import LOG
    from mixreg.training.trained import load_trained
    from mixreg.training.watched_terms import monitor_of

    trained = load_trained(run, model, method)
    config = trained.config if alpha is None else replace(trained.config, alpha=alpha)
    monitor = monitor_of(own_batches(trained), trained.targets, config, samples, tangents)
    log = run / LOG if run.is_dir() else run.parent / LOG
    records = [json.loads(line) for line in log.read_text().splitlines()] if log.is_file() else []
    history = [{"at": float(record["epoch"])} | record["terms"] for record in records if "terms" in record]
    return trained.net, monitor, history


def _of_network(network: str, data: Path, alpha: float, samples: int, tangents: int | None) -> tuple[Any, TermsMonitor]:
    from mixreg.commands.verify import load_arrays, load_network
    from mixreg.theory.moments import DataMoments
    from mixreg.training.terms_monitor import TermsMonitor

    net, (x, y) = load_network(network), load_arrays(data)
    x = x.to(next((parameter.dtype for parameter in net.parameters()), x.dtype))
    moments = None
    if x[0].numel() <= 4096 and not y.is_floating_point():
        moments = DataMoments(int(y.max()) + 1, covariance=True)
        moments.update(x, y)
    loss = "squared_error" if y.is_floating_point() else "cross_entropy"
    return net, TermsMonitor(x[:samples], y[:samples], alpha, moments, loss, tangents=tangents)


def _print(found: dict[str, float], samples: int, alpha: float) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=shown(f"Terms of Theorem 3 on {samples:,} samples, α = {alpha:g}"), box=None, pad_edge=False)
    table.add_column("")
    table.add_column("value", justify="right")
    table.add_column("± standard error", justify="right")
    for name, told in _ROWS.items():
        if name in found:
            error = found.get(f"{name}_stderr", 0.0)
            table.add_row(told, f"{found[name]:.5g}", f"{error:.2g}" if error else "")
    Console().print(table)


def _draw(out: Path, history: list[dict[str, float]]) -> None:
    import io

    from mixreg._support.files import write_bytes
    from mixreg.report.terms_figure import terms_figure

    buffer = io.BytesIO()
    terms_figure(history).savefig(buffer, dpi=150, format=out.suffix.removeprefix(".") or "png")
    write_bytes(out, buffer.getvalue())
