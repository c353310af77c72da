"""`mixreg verify`: every statement holds, a broken one would not, and the command says so."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import preloaded
import pytest
import torch
from click.testing import CliRunner
from torch import nn

from mixreg import Theta, verify
from mixreg.commands.main import main
from mixreg.verify import statements

MODEL = """
import torch

def make_net():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(6, 5), torch.nn.SiLU(), torch.nn.Linear(5, 3))
"""


@pytest.fixture(scope="module")
def rows() -> list:
    return verify.verify()


def test_every_statement_holds(rows) -> None:
    assert [row.name for row in rows if not row.holds] == []
    names = " ".join(row.name for row in rows)
    for part in (
        "distribution of θ",
        "Theorem 1",
        "Lemma 2",
        "Theorem 3",
        "Corollary CE",
        "Corollary LR",
        "Corollary SE",
    ):
        assert part in names
    for part in ("Proposition", "eq. (Ji)", "limit α → 0", "limit α → ∞", "eq. (testmodif)"):
        assert part in names
    statements_ = " ".join(row.statement for row in rows)
    for part in ("any noise with the same covariances", "homogeneous", "temperature", "if mean H(p) ≤ H(ȳ)"):
        assert part in statements_


def test_errata_show_that_the_printed_formula_fails(rows) -> None:
    errata = [row for row in rows if row.name.startswith("Erratum")]
    assert sorted(row.name[:9] for row in errata) == [f"Erratum {k}" for k in range(1, 7)]
    for row in errata:
        assert row.holds
        assert row.printed > 100 * row.tolerance


def test_a_wrong_distribution_would_be_noticed(monkeypatch) -> None:
    monkeypatch.setattr(statements, "Theta", lambda alpha: Theta(1.1 * alpha))
    failed = {row.name for row in verify.verify() if not row.holds}
    assert "§3, distribution of θ" in failed
    assert "§5, label smoothing" in failed


def test_networks_with_kinks() -> None:
    net = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4))
    x, y = 3 * torch.randn(16, 3), torch.arange(16) % 4
    rows = verify.verify(net, x, y)
    assert rows[0].name == "Theorem 1"
    assert all(row.holds for row in rows), rows


def test_on_a_model_of_one_s_own() -> None:
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Softplus(), nn.Linear(4, 2))
    x, y = torch.randn(30, 3), torch.randn(30, 2)
    found = verify.verify(net, x, y, alpha=0.7, loss="squared_error")
    assert len(found) == 7
    assert all(row.holds for row in found)
    assert net[0].weight.dtype == torch.float32
    assert net.training
    with pytest.raises(ValueError, match="give its data too"):
        verify.verify(net)


class Sharp(nn.Module):
    """A network with large logits."""

    def __init__(self, sharpness: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.sharpness = sharpness
        self.layers = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.sharpness * self.layers(x)


@pytest.mark.parametrize("loss", ["cross_entropy", "logistic"])
@pytest.mark.parametrize("sharpness", [10.0, 100.0, 1e5])
def test_rounding_on_a_confident_network_is_no_counterexample(sharpness, loss) -> None:
    x = 3 * torch.randn(16, 6, generator=torch.Generator().manual_seed(0))
    y = torch.arange(16) % 3
    found = verify.verify(
        Sharp(sharpness), x, y if loss == "cross_entropy" else nn.functional.one_hot(y, 3).float(), loss=loss
    )
    assert [row for row in found if not row.holds] == []
    # R1 and R3 are checked where they exist: not at all where 1/p overflows everywhere.
    assert len(found) == (6 if sharpness == 1e5 else 7)


ATTENTION = """
import torch
from torch import nn

class Attention(nn.Module):
    def __init__(self, kind):
        super().__init__()
        torch.manual_seed(0)
        self.attention = (
            nn.MultiheadAttention(8, 2, batch_first=True)
            if kind == "attention"
            else nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2)
        )
        self.kind, self.head = kind, nn.Linear(8, 3)

    def forward(self, x):
        x = self.attention(x, x, x, need_weights=False)[0] if self.kind == "attention" else self.attention(x)
        return self.head(x.mean(1))

def attention():
    return Attention("attention")

def transformer():
    return Attention("transformer").requires_grad_(False)
"""


@pytest.mark.parametrize("kind", ["attention", "transformer"])
def test_attention(kind, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "attending", raising=False)
    (tmp_path / "attending.py").write_text(ATTENTION)
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=generator.normal(size=(8, 5, 8)), y=generator.integers(0, 3, 8))
    result = CliRunner().invoke(main, ["verify", "--model", f"attending:{kind}", "--data", "data.npz", "--json"])
    assert result.exit_code == 0, result.output
    assert all(row["holds"] for row in json.loads(result.output))


def test_losses_of_one_s_own() -> None:
    """One that is not convex in the outputs, and one that is linear in places."""
    net, x, y = Sharp(1.0), torch.randn(9, 6), torch.randn(9, 3)
    for loss in (lambda y, u: torch.sin(u - y).sum(), lambda y, u: nn.functional.huber_loss(u, y, reduction="sum")):
        assert [row for row in verify.verify(net, x, y, loss=loss) if not row.holds] == []


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess:
    return preloaded.run(["-m", "mixreg", *arguments], cwd)


def test_the_command_prints_a_table() -> None:
    result = run("verify")
    assert result.returncode == 0
    assert "42 of 42 statements hold." in result.stdout


def test_the_command_on_a_model_and_as_json(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MODEL)
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "data.npz", x=generator.normal(size=(20, 2, 3)), y=generator.integers(0, 3, 20))
    result = run("verify", "--model", "mine:make_net", "--data", "data.npz", "--alpha", "0.5", "--json", cwd=tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout)
    assert len(found) == 7
    assert all(row["holds"] for row in found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "mine:make_net"], "belong together"),
        (["--model", "mine", "--data", "data.npz"], "as MODULE:NAME"),
        (["--model", "nowhere:make", "--data", "data.npz"], "cannot find 'nowhere:make'"),
        (["--model", "mine:nothing", "--data", "data.npz"], "cannot find 'mine:nothing'"),
        (["--model", "mine:make_net", "--data", "pickled.npz"], "pickled.npz is not an .npz with plain arrays"),
        (["--model", "mine:make_net", "--data", "broken.npz"], "broken.npz is not an .npz with plain arrays"),
        (["--model", "mine:make_net", "--data", "none.npz"], "does not exist"),
        (["--model", "mine:make_net", "--data", "data.npz", "--loss", "hinge"], "known are cross_entropy"),
        (["--model", "mine:make_net", "--data", "data.npz", "--alpha", "-1"], "[0, inf]"),
    ],
)
def test_one_line_errors(arguments, message, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    (tmp_path / "mine.py").write_text(MODEL)
    np.savez("data.npz", x=np.ones((4, 2, 3)), y=np.arange(4) % 3)
    np.savez("pickled.npz", x=np.array([{"a": 1}], dtype=object), y=np.arange(1))
    Path("broken.npz").write_bytes(Path("data.npz").read_bytes()[:100])
    result = CliRunner().invoke(main, ["verify", *arguments])
    assert result.exit_code in (1, 2)
    assert message in result.output
    assert "Traceback" not in result.output


def test_help_needs_no_torch() -> None:
    code = "import sys\nfrom mixreg.commands.main import main\n"
    code += "try: main(['--help'])\nexcept SystemExit: print('torch' in sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip().endswith("False")
    assert "verify" in result.stdout
