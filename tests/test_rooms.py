"""The rooms of the package: which may call which, how large they are, and where random numbers are drawn."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "mixreg"
FILES = sorted(PACKAGE.rglob("*.py"))
# From bottom to top: a room may import from those before it and from itself.
ROOMS = [
    "_support",
    "losses",
    "theory",
    "_autodiff",
    "risk",
    "calibration",
    "prediction",
    "regularisers",
    "methods",
    "report",
    "data",
    "models",
    "training",
    "evaluation",
    "experiments",
    "verify",
    "adapters",
    "commands",
    "__main__",
]
DRAWING = {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "bernoulli", "multinomial", "normal"}


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path: Path) -> Iterator[str]:
    """The rooms that a file imports from, at its top or inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.ImportFrom) and node.module == "mixreg":
            names = [f"mixreg.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "mixreg" and len(parts) > 1 and parts[1] != "__version__":
                yield parts[1]


def test_every_room_has_its_place() -> None:
    assert {room_of(path) for path in FILES} == {*ROOMS, "__init__"}


@pytest.mark.parametrize("room", ROOMS)
def test_no_room_knows_of_the_rooms_above(room: str) -> None:
    below = set(ROOMS[: ROOMS.index(room) + 1])
    edges = {
        (str(path.relative_to(PACKAGE)), other) for path in FILES if room_of(path) == room for other in imported(path)
    }
    assert not {edge for edge in edges if edge[1] not in below}


def test_a_wrong_edge_would_be_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from mixreg import risk\ndef f():\n    import mixreg.commands.main\n    from mixreg.theory import theta\n"
    )
    assert set(imported(wrong)) == {"risk", "commands", "theory"}


def test_rooms_are_of_a_size_to_look_over() -> None:
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 22
    assert {path.name: n for path in FILES if (n := len(path.read_text().splitlines())) > 300} == {}


def test_random_numbers_are_drawn_in_one_place() -> None:
    """So that a generator of any device serves data on any other."""
    found = set()
    for path in FILES:
        if path == PACKAGE / "_support" / "random.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            is_named = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_named and node.value.id == "torch" and node.attr in DRAWING:
                found.add((str(path.relative_to(PACKAGE)), node.attr))
    # A network's initial weights come from PyTorch's global generator, as everywhere.
    assert found <= {("models/features.py", "randn"), ("models/features.py", "rand")}
