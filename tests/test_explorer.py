"""The explorer: its numbers are the package's, and a real browser shows it as it should be."""

import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from browser import NEEDS_BROWSER
from click.testing import CliRunner
from devtools import Tab
from explorer_pictures import PICTURES, drawn_pictures

from mixreg.commands.main import main
from mixreg.report.explorer.build import explorer_page, in_order, joined

GROUP = pytest.mark.xdist_group("explorer")
SCENES = ["mix", "fold", "shrink", "guess", "train", "why", "limits"]
FOLDER = PICTURES.parent


def test_the_page_is_whole_small_and_alone() -> None:
    page = explorer_page()
    assert len(page.encode()) < 300_000
    # Nothing that a browser would fetch: addresses in it are names of formats, or data.
    assert not re.search(r'(?:src|href)="(?!#|data:|\$\{)', page)
    assert set(re.findall(r"https?://[^\s'\"]+", page)) <= {"http://www.w3.org/2000/svg"}
    assert not re.search(r"^(?:import|export) ", page, re.MULTILINE)
    assert not re.search(r"/\* (?:style|shared|script) \*/|<!-- picture", page)
    assert page.count('<figure class="still"><svg viewBox') == len(SCENES)


def test_modules_are_small_and_stand_after_what_they_import() -> None:
    order = in_order("js/main.js")
    assert sorted(order) == sorted(str(path.relative_to(FOLDER)) for path in (FOLDER / "js").rglob("*.js"))
    for name in order:
        text = (FOLDER / name).read_text()
        assert len(text.splitlines()) <= 300
        for found in re.findall(r'from "([^"]+)"', text):
            other = str((FOLDER / name).parent.joinpath(found).resolve().relative_to(FOLDER))
            assert order.index(other) < order.index(name)
    # What the worker runs knows nothing of a page.
    assert "document" not in joined(in_order("js/worker.js"))


def luminance(colour: str) -> float:
    parts = [int(colour[k : k + 2], 16) / 255 for k in (1, 3, 5)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(one: str, other: str) -> float:
    low, high = sorted([luminance(one), luminance(other)])
    return (high + 0.05) / (low + 0.05)


def palette(theme: str) -> dict[str, str]:
    blocks = re.findall(r":root \{(.*?)\}", (FOLDER / "style.css").read_text(), re.DOTALL)
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in blocks)
    return light if theme == "light" else light | dark


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_palette_can_be_read(theme: str) -> None:
    colours = palette(theme)
    texts = [name for name in colours if name.endswith("-text") or name in ("ink", "faint", "accent")]
    assert len(texts) == 11
    for name in texts:
        assert min(contrast(colours[name], colours[ground]) for ground in ("ground", "card")) >= 4.5, name
    for name in ("erm", "mixup", "approximate", "modified", "edge"):
        assert contrast(colours[name], colours["ground"]) >= 3, name  # lines
    assert contrast(colours["ground"], colours["ink"]) >= 7  # the present scene's name, reversed


def test_one_colour_per_method() -> None:
    """Okabe and Ito's, which people with any colour vision tell apart."""
    found = {name: palette("light")[name] for name in ("erm", "mixup", "approximate", "modified")}
    assert found == {"erm": "#666666", "mixup": "#d55e00", "approximate": "#0072b2", "modified": "#009e73"}


def test_the_command_writes_the_page(tmp_path: Path, monkeypatch) -> None:
    opened = []
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    out = tmp_path / "new" / "mixup.html"
    result = CliRunner().invoke(main, ["explore", "--out", str(out)])
    assert result.exit_code == 0, result.output
    assert out.read_text() == explorer_page()
    assert not opened
    result = CliRunner().invoke(main, ["explore"])
    assert result.exit_code == 0
    assert opened[0].startswith("file://")
    assert Path(opened[0].removeprefix("file://")).read_text() == explorer_page()
    result = CliRunner().invoke(main, ["explore", "--no-browser"])
    assert len(opened) == 1
    assert Path(re.search(r"Wrote (.*\.html)", result.output).group(1)).is_file()
    result = CliRunner().invoke(main, ["explore", "--out", str(tmp_path)])
    assert result.exit_code == 2
    assert "is a directory" in result.output


LOOK = """
(() => {
  const { canvas } = explorer.stage, box = canvas.getBoundingClientRect();
  const copy = new OffscreenCanvas(canvas.width, canvas.height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(canvas, 0, 0);
  const pixels = new Uint32Array(copy.getImageData(0, 0, canvas.width, canvas.height).data.buffer);
  const bar = document.querySelector(".bar").getBoundingClientRect();
  return [box.top - bar.bottom, box.bottom - innerHeight, new Set(pixels).size];
})()
"""


@NEEDS_BROWSER
@GROUP
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_scenes_in_a_browser(tab: Tab, width: int, theme: str) -> None:
    tab.show(width, 800, theme, motion="reduce")
    tab.wait_for("explorer.model.nets !== null", 200)
    for scene in SCENES:
        tab.run(f"explorer.goTo('{scene}', false)")
        tab.wait_for(f"explorer.model.state.scene === '{scene}'")
        assert tab.run("document.documentElement.scrollWidth <= innerWidth")
        # The stage is in view, below the bar, and something is drawn on it.
        tab.wait_for("explorer.stage.waiting === 0 && explorer.stage.shares === explorer.stage.target")
        above, below, colours = tab.run(LOOK)
        assert above >= -1
        assert below <= 1
        assert colours > 5
        assert tab.run("document.querySelectorAll('nav [aria-current]').length") == 1
    ground = tab.run("getComputedStyle(document.body).backgroundColor")
    assert ground == ("rgb(20, 22, 26)" if theme == "dark" else "rgb(255, 255, 255)")
    assert tab.problems == []


@NEEDS_BROWSER
@GROUP
def test_a_view_is_shared_through_its_address(tab: Tab, explorer: Path) -> None:
    tab.run("explorer.update({alpha: 2, data: 'rings', seed: 5, lambda: 0.25, pair: [0.1, 0.2, 1, -0.5]})")
    tab.wait_for("location.hash.includes('pair')")
    address = tab.run("location.href")
    assert address.endswith("#alpha=2&data=rings&seed=5&lambda=0.25&pair=0.1,0.2,1,-0.5")
    state, points = tab.run("[explorer.model.state, explorer.model.problem.x]")
    tab.open("about:blank")
    tab.open(address)
    assert tab.run("[explorer.model.state, explorer.model.problem.x]") == [state, points]
    tab.open("about:blank")
    tab.open(explorer.as_uri() + "#alpha=-3&data=nothing&seed=1e99&scene=nowhere&pair=1,2&unknown=1&lambda=<b>")
    assert tab.run("JSON.stringify(explorer.model.state) === JSON.stringify(defaultState())")
    tab.open("about:blank")
    # What no control can be set to is not read either.
    tab.open(explorer.as_uri() + "#stretch=2.5&pair=9,9,9,9")
    assert tab.run("JSON.stringify(explorer.model.state) === JSON.stringify(defaultState())")
    tab.open("about:blank")
    tab.open(explorer.as_uri() + "#scene=limits&shift=0.5")
    tab.wait_for("explorer.model.state.scene === 'limits' && explorer.model.state.shift === 0.5")
    assert tab.problems == []


@NEEDS_BROWSER
@GROUP
def test_a_jump_within_the_page_keeps_the_state(tab: Tab, explorer: Path) -> None:
    tab.open("about:blank")
    tab.open(explorer.as_uri() + "#alpha=4&data=rings&seed=7")
    tab.run("document.querySelector('.skip').click()")
    tab.run("location.hash = 'why'")
    tab.wait_for("explorer.model.state.alpha === 4 && explorer.model.state.data === 'rings'")
    assert tab.run("explorer.model.state.seed") == 7
    tab.run("document.getElementById('seed').focus()")
    tab.run("Object.assign(document.getElementById('seed'), {value: 12345}).dispatchEvent(new Event('change'))")
    assert tab.run("[document.getElementById('seed').value, explorer.model.state.seed]") == ["9999", 9999]
    assert tab.problems == []


@NEEDS_BROWSER
@GROUP
@pytest.mark.parametrize(("width", "height"), [(320, 640), (740, 360), (961, 700), (1024, 700), (1100, 700)])
def test_nothing_is_covered_at_odd_sizes(tab: Tab, width: int, height: int) -> None:
    tab.show(width, height, "light", motion="reduce")
    assert tab.run("document.documentElement.scrollWidth <= innerWidth")
    at_middle = """(() => {
      const names = ["alpha", "data", "seed", "train", "share"].map((name) => document.getElementById(name));
      return [...names, ...document.querySelectorAll("nav a")].filter((element) => {
        const { left, top, width, height } = element.getBoundingClientRect();
        return !element.contains(document.elementFromPoint(left + width / 2, top + height / 2));
      }).map((element) => element.id || element.textContent);
    })()"""
    assert tab.run(at_middle) == []
    # There is room for what is drawn.
    assert tab.run("document.querySelector('.stage').getBoundingClientRect().height") >= 0.4 * height


@NEEDS_BROWSER
@GROUP
def test_training_is_the_same_for_the_same_seed(tab: Tab) -> None:
    """In the worker and on the page: what is shared is seen by others too."""
    expected = tab.run(
        "(() => { const t = training({data: 'moons', seed: 1, alpha: 1}); let r;"
        "do r = t.next().value; while (r.step < 100); return r.looks; })()"
    )
    tab.wait_for("explorer.model.step >= 100", 200)
    found = tab.run("explorer.model.looks")
    for mine, its in zip(expected, found, strict=True):
        assert its[: len(mine)] == mine
        assert [look["step"] for look in mine] == [0, 80]
        assert mine[1]["mixup"] < mine[0]["mixup"]


@NEEDS_BROWSER
@GROUP
def test_homogeneous_networks_on_centred_data_are_as_they_were(tab: Tab) -> None:
    found = tab.run(
        "(() => { const t = training({data: 'moons', seed: 1, alpha: 1, homogeneous: true}); let r;"
        "do r = t.next().value; while (r.step < 20);"
        "const p = makeProblem({data: 'moons', seed: 1, alpha: 1, homogeneous: true});"
        "return [1, p.forms.mean].map((s) => p.test.x.map((x) => softmax(predictor(r.nets[1], p.moments, s)(x))));})()"
    )
    np.testing.assert_allclose(found[0], found[1], atol=1e-12)


@NEEDS_BROWSER
@GROUP
def test_the_keyboard_reaches_and_moves_everything(tab: Tab) -> None:
    reached = []
    for _ in range(60):
        tab.press("Tab")
        reached.append(
            tab.run(
                "document.activeElement.id || document.activeElement.className || document.activeElement.textContent"
            )
        )
        if reached[-1] == "shift":
            break
    wanted = {"skip", "alpha", "data", "seed", "train", "share", "mix", "limits", "handle", "lambda", "rain", "folded"}
    assert wanted | {"amount", "sample", "stretch", "answer", "rescaled", "network", "homogeneous"} <= {*reached}
    tab.run("scrollTo(0, 0); document.getElementById('alpha').focus()")
    tab.press("ArrowRight")
    assert tab.run("explorer.model.state.alpha") > 1
    tab.wait_for("explorer.model.state.scene === 'mix' && !document.querySelector('.handle').hidden")
    before = tab.run("pairOf(explorer.model)[0]")
    tab.run("document.querySelector('.handle').focus()")
    tab.press("ArrowUp")
    assert tab.run("pairOf(explorer.model)[0]") == pytest.approx([before[0], before[1] + 0.05])


@NEEDS_BROWSER
@GROUP
def test_points_are_dragged_and_samples_pointed_at(tab: Tab) -> None:
    tab.wait_for("!document.querySelector('.handle').hidden")
    x, y = tab.run(
        "(() => { const r = document.querySelector('.handle').getBoundingClientRect();"
        "return [r.x + r.width / 2, r.y + r.height / 2]; })()"
    )
    before, scale = tab.run("[pairOf(explorer.model)[0], explorer.stage.camera().scale]")
    tab.mouse("mousePressed", x, y, 1)
    tab.mouse("mouseMoved", x + 40, y + 20, 1)
    tab.mouse("mouseReleased", x + 40, y + 20)
    after = tab.run("pairOf(explorer.model)[0]")
    assert after == pytest.approx([before[0] + 40 / scale, before[1] - 20 / scale], abs=0.02)
    tab.run("explorer.goTo('shrink', false)")
    tab.wait_for("explorer.model.state.scene === 'shrink' && explorer.stage.waiting === 0")
    place = tab.run(
        "(() => { const { x, moments, forms } = explorer.model.problem, { stage } = explorer;"
        "const r = stage.canvas.getBoundingClientRect();"
        "const [u, v] = stage.camera().place(scaled(x[42], moments.xMean, forms.mean));"
        "return [r.x + u, r.y + v]; })()"
    )
    tab.mouse("mouseMoved", *place)
    tab.wait_for("explorer.model.state.sample === 42")
    assert "Sample 42" in tab.run("document.getElementById('noise-shown').textContent")
    assert tab.problems == []


IDLE = """
new Promise((end) => {
  const began = performance.now();
  let frames = 0;
  const wait = (now) => {
    frames++;
    if (now - began < 1000) requestAnimationFrame(wait);
    else end((1000 * frames) / (now - began));
  };
  requestAnimationFrame(wait);
})
"""
DRAG = """
new Promise((end) => {
  const slider = document.getElementById("alpha"), first = explorer.stage.frames, began = performance.now();
  const drag = () => {
    const t = (performance.now() - began) / 2000;
    slider.value = 4 * Math.sin(6 * Math.min(1, t));
    slider.dispatchEvent(new Event("input"));
    if (t < 1) requestAnimationFrame(drag);
    else end([explorer.stage.frames - first, 2 * t, explorer.model.state.alpha]);
  };
  requestAnimationFrame(drag);
})
"""


@NEEDS_BROWSER
@GROUP
def test_dragging_alpha(tab: Tab, record_property, capsys) -> None:
    """Reported, not judged: how many frames a second there are while α is dragged through its range."""
    tab.show(1280, 860)
    tab.wait_for("explorer.model.step === 1600", 300)
    rates = {"nothing drawn": tab.run(IDLE)}
    for scene in ("mix", "shrink", "train"):
        tab.run(f"explorer.goTo('{scene}', false)")
        tab.wait_for(f"explorer.model.state.scene === '{scene}'")
        frames, seconds, alpha = tab.run(DRAG)
        rates[scene] = frames / seconds
        assert frames > 0
        assert alpha == pytest.approx(2 ** (4 * np.sin(6)), rel=0.01)
    record_property("frames_per_second", rates)
    with capsys.disabled():
        print("\nframes a second while α is dragged:", {scene: round(rate, 1) for scene, rate in rates.items()})
    assert tab.problems == []


@NEEDS_BROWSER
@GROUP
def test_movement_ends_where_calm_readers_are_at_once(tab: Tab) -> None:
    tab.show(1280, 860)
    tab.run("explorer.goTo('train', false)")
    tab.wait_for("explorer.model.state.scene === 'train' && explorer.stage.shares === explorer.stage.target")
    tab.run("document.getElementById('rescaled').click()")
    seen = [tab.run("explorer.stage.shares.rule") for _ in range(12)]
    assert all(a <= b for a, b in pairwise(seen))
    tab.wait_for("explorer.stage.shares.rule === 3")
    tab.show(1280, 860, motion="reduce")
    tab.run("document.getElementById('rescaled').click()")
    assert tab.run("explorer.stage.shares.rule") == 0


@NEEDS_BROWSER
@GROUP
def test_pictures_stand_in_where_scripts_are_off(tab: Tab, explorer: Path) -> None:
    tab.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        tab.show(360, 800)
        tab.open(explorer.as_uri())
        layout = tab.call("Page.getLayoutMetrics")
        assert layout["cssContentSize"]["width"] <= 360
        document = tab.call("DOM.getDocument")["root"]["nodeId"]
        pictures = tab.call("DOM.querySelectorAll", nodeId=document, selector=".still svg")["nodeIds"]
        assert len(pictures) == len(SCENES)
        for picture in pictures:
            box = tab.call("DOM.getBoxModel", nodeId=picture)["model"]
            assert box["width"] > 250
            assert box["height"] > 150
    finally:
        tab.call("Emulation.setScriptExecutionDisabled", value=False)


@NEEDS_BROWSER
@GROUP
def test_stored_pictures_are_what_the_page_draws(tab: Tab, explorer: Path) -> None:
    """Up to a pixel; fields, which are images, have their places compared."""
    for name, drawn in drawn_pictures(tab, explorer).items():
        stored = (PICTURES / f"{name}.svg").read_text().strip()
        texts = [re.findall(r">([^<]+)</text>", picture) for picture in (stored, drawn)]
        assert texts[0] == texts[1], name
        places = [re.findall(r'<(?:rect|text|image) x="([^"]+)" y="([^"]+)"', picture) for picture in (stored, drawn)]
        np.testing.assert_allclose(*(np.array(one, dtype=float) for one in places), atol=1, err_msg=name)
