"""The explorer's pictures for readers without scripts, as the page itself draws them; run this file to renew them."""

import tempfile
from pathlib import Path

from devtools import Tab, open_tab

from mixreg.report.explorer.build import write_explorer

PICTURES = Path(__file__).parent.parent / "mixreg" / "report" / "explorer" / "pictures"


def drawn_pictures(tab: Tab, page: Path) -> dict[str, str]:
    """The pictures of all scenes, after the networks are trained."""
    tab.show(1280, 860, motion="reduce")
    tab.open(page.as_uri())
    tab.wait_for("window.explorer && explorer.model.step === 1600", 300)
    return tab.run("explorer.stills()")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "explorer.html"
        write_explorer(page)
        with open_tab(Path(folder) / "profile") as tab:
            for name, picture in drawn_pictures(tab, page).items():
                (PICTURES / f"{name}.svg").write_text(picture + "\n")
                print(name, len(picture))
