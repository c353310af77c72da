"""The files around the package: they agree with each other, with the package and with what they promise."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import mixreg

ROOT = Path(__file__).parent.parent
PYTHONS = ["3.10", "3.11", "3.12", "3.13", "3.14"]


def content(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def parsed(name: str) -> dict:
    # YAML 1.1 takes "on" for true.
    return {("on" if key is True else key): value for key, value in yaml.safe_load(content(name)).items()}


def bibtex(text: str, kind: str) -> dict[str, str]:
    (entry,) = re.findall(rf"@{kind}\{{.*?\n\}}", text, re.DOTALL)
    return dict(re.findall(r"(\w+)\s*= \{(.*)\}", entry))


def test_one_paper_is_cited_everywhere() -> None:
    citation = parsed("CITATION.cff")
    paper, entry = citation["preferred-citation"], bibtex(content("docs/citing.md"), "article")
    authors = [f"{one['given-names']} {one['family-names']}" for one in paper["authors"]]
    assert entry["author"].replace(r"{\'e}", "é").split(" and ") == authors
    assert (entry["title"], entry["journal"]) == (paper["title"], paper["journal"])
    numbers = [paper[key] for key in ("year", "volume", "issue")]
    assert [int(entry[key]) for key in ("year", "volume", "number")] == numbers
    assert entry["pages"] == f"{paper['start']}--{paper['end']}"
    assert entry["url"].partition("jmlr.org")[2] == paper["url"].partition("jmlr.org")[2]
    assert paper["url"] in content("pyproject.toml")
    for name in authors:
        # As the package itself names them.
        assert name.split()[-1] in mixreg.__doc__


def test_one_version_and_one_address() -> None:
    citation, software = parsed("CITATION.cff"), bibtex(content("docs/citing.md"), "software")
    assert citation["version"] == software["version"] == mixreg.__version__
    assert citation["repository-code"] == software["url"] == "https://github.com/mixreg/mixreg"
    urls = re.search(r"\[project.urls\]\n(.*?)\n\n", content("pyproject.toml"), re.DOTALL)
    assert f'Source = "{software["url"]}"' in urls[1]
    major, minor, _ = mixreg.__version__.split(".")
    assert f"to {major}.{minor}\n" in content("UPGRADING.md")
    assert f"\n## {mixreg.__version__}\n" in content("CHANGELOG.md")


def test_tests_run_on_every_python_and_system() -> None:
    matrix = parsed(".github/workflows/tests.yml")["jobs"]["tests"]["strategy"]["matrix"]
    assert matrix["python"] == PYTHONS
    assert {system.split("-")[0] for system in matrix["system"]} == {"ubuntu", "macos", "windows"}
    classifiers = re.findall(r"Python :: (3\.\d+)", content("pyproject.toml"))
    assert classifiers == PYTHONS
    assert f'requires-python = ">={PYTHONS[0]}"' in content("pyproject.toml")
    assert f"Python {PYTHONS[0]} to {PYTHONS[-1]}" in content("docs/installing.md")


def test_releases_need_no_password() -> None:
    workflow = parsed(".github/workflows/release.yml")
    assert workflow["on"] == {"push": {"tags": ["v*"]}}
    publish = workflow["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}
    assert publish["needs"] == "build"
    assert "secrets." not in "".join(path.read_text() for path in (ROOT / ".github/workflows").iterdir())
    # The step that compares tag and version, as its shell would.
    (step,) = (step for step in workflow["jobs"]["build"]["steps"] if "tag" in step.get("name", ""))
    for tag, code in ((f"v{mixreg.__version__}", 0), ("v9.9.9", 1)):
        named = os.environ | {"GITHUB_REF_NAME": tag}
        run = subprocess.run(["sh", "-c", step["run"]], cwd=ROOT, env=named, check=False)
        assert run.returncode == code


def test_no_workflow_may_write_the_repository() -> None:
    for path in sorted((ROOT / ".github/workflows").iterdir()):
        workflow = parsed(str(path.relative_to(ROOT)))
        assert workflow["permissions"] == {"contents": "read"}, path.name
        for job in workflow["jobs"].values():
            assert set(job.get("permissions", {})) <= {"pages", "id-token"}
            for line in (step["run"] for step in job["steps"] if "run" in step):
                # What a make target or a script is called, there is.
                for target in re.findall(r"^make ([\w-]+)", line, re.MULTILINE):
                    assert re.search(rf"^{target}:", content("Makefile"), re.MULTILINE)
                for script in re.findall(r"\.ci/[\w.]+", line):
                    assert (ROOT / script).is_file()


def test_commits_are_linted_by_the_same_linters() -> None:
    hooks = {hook["id"]: hook for hook in parsed(".pre-commit-config.yaml")["repos"][0]["hooks"]}
    version = re.search(r"^ruff==.*$", content("constraints.txt"), re.MULTILINE)[0]
    for name in ("ruff-check", "ruff-format"):
        assert hooks[name]["additional_dependencies"] == [version]
    lint = re.search(r"\nlint:.*?\n\n", content("Makefile"), re.DOTALL)[0]
    for hook in hooks.values():
        words = hook["entry"].split()
        assert f"$(BIN)/{' '.join([Path(words[0]).name, *words[1:2]])}" in lint


@pytest.mark.parametrize("name", ["bug.yml", "idea.yml"])
def test_issue_templates_ask(name: str) -> None:
    template = parsed(f".github/ISSUE_TEMPLATE/{name}")
    assert {"name", "description", "body"} <= set(template)
    assert all(field["attributes"]["label"] for field in template["body"])


FAKE = "#!/bin/sh\n"


def run_ci(folder: Path, **programs: str) -> subprocess.CompletedProcess:
    """`.ci/run` where nothing is installed but these programs and what every system has."""
    place = folder / "bin"
    place.mkdir()
    for name in ("bash", "dirname", "id", "timeout", "env", "touch", "chmod", "sh", "cat"):
        (place / name).symlink_to(next(p for d in ("/bin", "/usr/bin") if (p := Path(d) / name).exists()))
    for name, code in programs.items():
        (place / name.replace("_", "-")).write_text(FAKE + code)
        (place / name.replace("_", "-")).chmod(0o755)
    environment = {"PATH": str(place), "PLACE": str(place)}
    return subprocess.run([ROOT / ".ci/run"], env=environment, capture_output=True, text=True, check=False)


ON_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="Debian's packages")
MAKE = 'echo "make $1, browser ${MIXREG_BROWSER:-not required}"\n'
SUDO = 'shift; exec "$@"\n'


@ON_LINUX
def test_chromium_is_installed_where_it_may_be(tmp_path: Path) -> None:
    apt = 'case "$*" in *install*) cp_to="$PLACE/chromium"; cat "$PLACE/make" > "$cp_to"; chmod +x "$cp_to";; esac\n'
    done = run_ci(tmp_path, make=MAKE, apt_get=apt, sudo=SUDO)
    assert (done.returncode, done.stdout.strip()) == (0, "make test, browser required"), done.stderr
    assert (tmp_path / "bin/chromium").exists()


@ON_LINUX
@pytest.mark.parametrize("programs", [{}, {"apt_get": "exit 100\n"}], ids=["no Debian", "no permission"])
def test_it_goes_on_without_chromium_and_says_so(programs: dict[str, str], tmp_path: Path) -> None:
    done = run_ci(tmp_path, make=MAKE, sudo=SUDO, **programs)
    assert (done.returncode, done.stdout.strip()) == (0, "make test, browser not required")
    assert "Chromium is not here and cannot be installed" in done.stderr


@ON_LINUX
def test_a_failing_test_fails(tmp_path: Path) -> None:
    assert run_ci(tmp_path, make="exit 3\n", chromium="").returncode == 3


def browser_tests(folder: Path, **variables: str) -> subprocess.CompletedProcess:
    """A browser test where there is no browser, reported as this project's are."""
    (folder / "test_page.py").write_text(
        "from browser import NEEDS_BROWSER\n@NEEDS_BROWSER\ndef test_page():\n    pass\ndef test_other():\n    pass\n"
    )
    hooks = "from browser import pytest_configure, pytest_terminal_summary"
    assert hooks in content("tests/conftest.py")
    (folder / "conftest.py").write_text(f"{hooks}\n")
    (folder / "browser.py").write_text(content("tests/browser.py"))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", str(folder), str(folder)]
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "MIXREG"))} | variables
    environment["PATH"] = str(folder)
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_browser_tests_that_did_not_run_are_told(tmp_path: Path) -> None:
    done = browser_tests(tmp_path)
    assert done.returncode == 0, done.stdout
    assert "NOT RUN: browser tests" in done.stdout
    assert "Chromium is not installed: 1 tests of pages were not run." in done.stdout
    required = browser_tests(tmp_path, MIXREG_BROWSER="required")
    assert required.returncode == pytest.ExitCode.USAGE_ERROR
    assert "MIXREG_BROWSER=required, and Chromium is not installed" in required.stderr
