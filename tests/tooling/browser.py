"""The browser of the tests, and axe-core, which finds accessibility problems: from Debian and from npm."""

import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

from tests.tooling.apt import install, may_install, wanted
from tests.tooling.installs import cache
from tests.tooling.machine import unpack

AXE = "4.10.3"
SHELL, CHROMIUM = Path("/usr/bin/chromium-headless-shell"), Path("/usr/bin/chromium")
"""The shell is preferred: it draws no windows, and the tests take half of the processor's time with it."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-dev-shm-usage"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
)


def provide_browser() -> str:
    """Install missing parts where possible; return a sentence about what the tests will use."""
    if not SHELL.exists() and may_install():
        print(f"Browser: installing {SHELL.name} by apt-get", flush=True)
        install(SHELL.name)
    if browser() is None and may_install():
        install(CHROMIUM.name)
    if not axe().exists() and wanted() and shutil.which("npm"):
        get_axe()
    return f"Browser: {no_browser() or 'chromium and axe-core are there.'}"


def browser() -> Path | None:
    """Return the browser to start, or None."""
    return next((path for path in (SHELL, CHROMIUM) if path.exists()), None)


def no_browser() -> str | None:
    """Return the reason why no page can be opened, or None."""
    if find_spec("playwright") is None:
        return "playwright is not here: pip install --group browser."
    if browser() is None:
        return "chromium is not installed: apt-get install chromium-headless-shell."
    return None if axe().exists() else "axe-core is not here: `make services` gets it by npm."


def axe() -> Path:
    """The file of axe-core."""
    return cache() / f"axe-core-{AXE}" / "package" / "axe.min.js"


def get_axe() -> None:
    """Fetch axe-core with npm, completely or not at all; only the browser runs it."""
    place = cache() / f"axe-core-{AXE}"
    building = place.with_name(f".building-{place.name}")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(parents=True)
    words = ["npm", "pack", "--silent", "--ignore-scripts", f"axe-core@{AXE}"]
    done = subprocess.run(words, cwd=building, capture_output=True, text=True, check=False)
    packed = sorted(building.glob("*.tgz"))
    if done.returncode or not packed:
        print(f"npm could not fetch axe-core {AXE}: {(done.stderr or done.stdout)[-1000:]}", flush=True)
        return
    unpack(packed[0], building)
    shutil.rmtree(place, ignore_errors=True)
    building.rename(place)
