"""A finished run as one file for elsewhere: its network with its rule, and the preparation of its inputs, inside.

    onnx          a graph for ONNX Runtime and its like
    pt2           a graph for PyTorch: `torch.export.load(file).module()`
    safetensors   tensors and a record, for `mixreg.load(file)`

Graphs take inputs as `mixreg predict` does, in batches of any size: images n × height × width × channels bytes, or
features n × … as the training data had them. They give probabilities (of classes, or of each label), or numbers in the
units of the targets. What is written is read back and compared with the run first; nothing else is left behind.
"""

from __future__ import annotations

import contextlib
import io
import json
import logging
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mixreg._support.files import write_bytes
from mixreg._support.random import integers, normal, stream
from mixreg._support.tasks import CLASSES, NUMBERS
from mixreg._support.tensor_files import load_tensors, save_tensors
from mixreg.training.finished import FinishedRun, load
from mixreg.training.trained import MODEL

FORMATS = ("onnx", "pt2", "safetensors")
# What a graph may differ by from the run, in probabilities (or relative to the spread of numbers).
TOLERANCE = 1e-5


class Deployed(nn.Module):
    """From inputs as people have them to probabilities or numbers; see the module's head."""

    scale: Tensor
    shift: Tensor
    column_mean: Tensor
    column_std: Tensor
    output_mean: Tensor
    output_std: Tensor

    def __init__(self, run: FinishedRun) -> None:
        super().__init__()
        trained = run.trained
        how, targets = trained.preparation, trained.targets
        self.model, self.task, self.takes_images = run.model, targets.task, how.pixels is not None
        # As the run computes it: of columns far from 0 the two ways differ.
        if how.pixels is not None:
            mean, std = (part.reshape(-1, 1, 1) for part in how.pixels)
            self.register_buffer("scale", 1 / (255 * std))
            self.register_buffer("shift", -mean / std)
        self.takes_table = how.columns is not None
        if how.columns is not None:
            self.register_buffer("column_mean", how.columns.mean)
            self.register_buffer("column_std", how.columns.std)
        if targets.scaling is not None:
            self.register_buffer("output_mean", targets.scaling.mean)
            self.register_buffer("output_std", targets.scaling.std)

    def forward(self, x: Tensor) -> Tensor:
        """N × c."""
        if self.takes_images:
            x = x.permute(0, 3, 1, 2).to(torch.float32) * self.scale + self.shift
        if self.takes_table:
            x = (x - self.column_mean) / self.column_std
        u = self.model(x)
        if self.task == CLASSES:
            return u.softmax(1)
        return self.output_mean + self.output_std * u if self.task == NUMBERS else u.sigmoid()


def example_inputs(run: FinishedRun, count: int) -> Tensor:
    """Random inputs of the kind that the graph takes."""
    shape, generator = run.trained.shape, stream("export", count)
    if run.trained.pixels is not None:
        channels, height, width = shape
        return integers(256, (count, height, width, channels), generator).to(torch.uint8)
    x = normal((count, *shape), generator)
    columns = run.trained.preparation.columns
    return x if columns is None else columns.restored(x)


def described(run: FinishedRun) -> dict[str, str]:
    """What a file says of itself."""
    return {
        "mixreg": "1",
        "classes": json.dumps(run.classes),
        "task": run.trained.targets.task,
        "rule": run.rule,
        "config": json.dumps(run.config.to_json()),
    }


def export(run: FinishedRun, out: Path, kind: str) -> float:
    """Write a file, after it was compared with the run; the largest difference that was seen.

    Args:
        run: what to export, with the rule that it has.
        out: the file.
        kind: one of `FORMATS`.
    """
    if kind not in FORMATS:
        raise ValueError(f"a format is one of {', '.join(FORMATS)}, got {kind!r}")
    make = {"onnx": _onnx, "pt2": _pt2, "safetensors": _safetensors}[kind]
    content, answer = make(run)
    difference = 0.0
    for count in (1, 5, 2):
        x = example_inputs(run, count)
        outputs = run.outputs(x)
        expected = outputs if run.trained.targets.task == NUMBERS else run.probabilities(outputs)
        scaling = run.trained.targets.scaling
        unit = 1.0 if scaling is None else scaling.std
        with torch.no_grad():
            difference = max(difference, float(((answer(x) - expected) / unit).abs().max()))
    if not difference <= TOLERANCE:
        raise ValueError(
            f"the {kind} graph differs from the run by {difference:.2g}, more than {TOLERANCE:g}: nothing was written"
        )
    write_bytes(out, content)
    return difference


Made = tuple[bytes, Any]


def _graph(run: FinishedRun) -> tuple[nn.Module, Tensor]:
    # On a CPU and in one memory format: graphs do not know of devices.
    return Deployed(run).cpu().eval(), example_inputs(run, 3)


def _onnx(run: FinishedRun) -> Made:
    try:
        import onnx
        import onnxruntime
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise ImportError(
            "exporting to ONNX needs onnx, onnxscript and onnxruntime: pip install 'mixreg[onnx]'"
        ) from error
    module, x = _graph(run)
    name = "numbers" if run.trained.targets.task == NUMBERS else "probabilities"
    with warnings.catch_warnings(), _silent("torch.onnx"), tempfile.TemporaryDirectory() as folder:
        # Exporters speak of their own past and future, and of what is not installed.
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        program = torch.onnx.export(
            module,
            (x,),
            dynamo=True,
            verbose=False,
            input_names=["x"],
            output_names=[name],
            dynamic_shapes=({0: torch.export.Dim("n", min=1)},),
        )
        assert program is not None
        program.save(path)
        graph = onnx.load(path)
    for key, value in described(run).items():
        entry = graph.metadata_props.add()
        entry.key, entry.value = key, value
    content = graph.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    return content, lambda x: torch.from_numpy(session.run(None, {"x": x.numpy()})[0])


@contextlib.contextmanager
def _silent(name: str) -> Iterator[None]:
    """Inside, a logger says nothing."""
    logger = logging.getLogger(name)
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _pt2(run: FinishedRun) -> Made:
    module, x = _graph(run)
    buffer = io.BytesIO()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = torch.export.export(module, (x,), dynamic_shapes=({0: torch.export.Dim("n", min=1)},))
        torch.export.save(program, buffer, extra_files={f"{key}.txt": value for key, value in described(run).items()})
        buffer.seek(0)
        again = torch.export.load(buffer).module()
    return buffer.getvalue(), again


def _safetensors(run: FinishedRun) -> Made:
    source = run.trained.path
    tensors, record = load_tensors(source / MODEL if source.is_dir() else source)
    fit = run.trained.fit
    record |= {"rule": run.rule, "fit": None if fit is None else fit.to_json()}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / MODEL
        save_tensors(path, tensors, record)
        content = path.read_bytes()
        again = load(path, model=_own(run.config.model), method=_own(run.config.method))

    def answer(x: Tensor) -> Tensor:
        outputs = again.outputs(x)
        return outputs if run.trained.targets.task == NUMBERS else again.probabilities(outputs)

    return content, answer


def _own(reference: str) -> str | None:
    """Code of one's own, which was named when the run was loaded."""
    return reference if ":" in reference else None
