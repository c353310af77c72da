"""CONTRIBUTING.md: every file in it runs, and every command does what it says."""

import re
import shlex
from pathlib import Path

import preloaded
import pytest

TEXT = (Path(__file__).parent.parent / "CONTRIBUTING.md").read_text()
SECTIONS = {part.split("\n", 1)[0]: part for part in TEXT.split("\n## ")[1:]}
TAUGHT = [name for name, part in SECTIONS.items() if "```python" in part or "```sh" in part]


def test_it_teaches_what_there_is_to_add() -> None:
    assert {"A method", "A loss", "A dataset", "An experiment", "Tests"} <= set(TAUGHT)


@pytest.mark.parametrize("section", TAUGHT)
def test_the_examples_run(section: str, tmp_path: Path) -> None:
    def run(*arguments: str) -> None:
        done = preloaded.run(arguments, tmp_path)
        assert done.returncode == 0, done.stdout + done.stderr

    for block in re.findall(r"```python\n(.*?)```", SECTIONS[section], re.DOTALL):
        name = block.split("\n", 1)[0].removeprefix("# ")
        assert name.endswith(".py")
        (tmp_path / name).write_text(block)
        run(name)
    for block in re.findall(r"```sh\n(.*?)```", SECTIONS[section], re.DOTALL):
        for line in block.strip().splitlines():
            program, *arguments = shlex.split(line, comments=True)
            assert program == "mixreg"
            run("-m", "mixreg", *arguments)


def test_the_rooms_are_those_that_there_are() -> None:
    from test_rooms import ROOMS

    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.*?) \|", SECTIONS["The rooms"], re.MULTILINE)))
    assert listed == [room for room in ROOMS if not room.startswith("__")]
