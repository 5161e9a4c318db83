"""Released sources of other projects, fetched by the clients of their registries and kept in this user's cache."""

import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.tooling.installs import cache

_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_SOURCES = f"deb-src [signed-by={_KEYRING}] https://deb.debian.org/debian trixie main\n"
_LIBRARIES = ("gevent", "pytest", "requests", "tornado")
"""Needed by the suites in Python, besides the requirements of amqpstorm."""


class Missing(RuntimeError):
    """Raised if a source is not available; the message names the reason and the fix."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One released version; `folder` is the folder in its archive."""

    name: str
    version: str
    archive: str
    folder: str
    tool: str

    @property
    def words(self) -> Sequence[str]:
        """The command that fetches the archive into the working folder."""
        wanted = {"apt-get": f"{self.name}={self.version}", "npm": f"{self.name}@{self.version}"}.get(self.tool)
        if self.tool == "apt-get":
            return (*_apt(), "source", "--download-only", "--tar-only", str(wanted))
        if self.tool == "npm":
            return ("npm", "pack", "--silent", str(wanted))
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check")
        return (*pip, "--no-deps", "--no-binary", ":all:", f"{self.name}=={self.version}")


# pika's releases on PyPI hold no tests; Debian's source package is the release of GitHub.
PIKA = Source(
    name="python-pika",
    version="1.3.2-1",
    archive="python-pika_1.3.2.orig.tar.gz",
    folder="pika-1.3.2",
    tool="apt-get",
)
AMQPSTORM = Source(
    name="amqpstorm", version="3.1.4", archive="amqpstorm-3.1.4.tar.gz", folder="amqpstorm-3.1.4", tool="pip"
)
# The last release whose package holds the tests.
AMQPLIB = Source(name="amqplib", version="2.2.0", archive="amqplib-2.2.0.tgz", folder="package", tool="npm")

DJANGO = Source(name="django", version="6.1.3", archive="django-6.1.3.tar.gz", folder="django-6.1.3", tool="pip")


def unpacked(source: Source, place: Path) -> Path:
    """Make a fresh copy of a source below `place`; its archive is fetched once."""
    archive = home() / source.archive
    if not archive.exists():
        _fetch(source)
    _run(["tar", "-xzf", str(archive), "-C", str(place)], place, f"{archive} cannot be unpacked. Delete it.")
    return place / source.folder


def python() -> Path:
    """Make a virtual environment with the libraries of the Python suites."""
    place = home() / f"venv-{sys.version_info.major}.{sys.version_info.minor}"
    ready = place / ".ready"
    if not ready.exists():
        shutil.rmtree(place, ignore_errors=True)
        _run([sys.executable, "-m", "venv", str(place)], home(), "The virtual environment cannot be made.")
        wanted = (*_LIBRARIES, f"amqpstorm=={AMQPSTORM.version}")
        pip = [str(place / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        _run([*pip, *wanted], home(), f"pip cannot install {', '.join(wanted)}.")
        ready.touch()
    return place / "bin" / "python"


def _fetch(source: Source) -> None:
    tool = sys.executable if source.tool == "pip" else source.tool
    if shutil.which(tool) is None:
        raise Missing(f"{source.name} {source.version} is fetched by {source.tool}, which is not installed.")
    print(f"Fetching {source.name} {source.version} by {source.tool}", flush=True)
    lack = f"{source.tool} cannot fetch {source.name} {source.version}."
    if source.tool == "apt-get":
        _run([*_apt(), "update"], home(), lack)
    _run(source.words, home(), lack)
    if not (home() / source.archive).exists():
        raise Missing(f"{source.tool} fetched something else than {source.archive}.")


def home() -> Path:
    """Return the folder of archives, libraries and logs."""
    place = cache() / "foreign"
    place.mkdir(parents=True, exist_ok=True)
    return place


def _apt() -> tuple[str, ...]:
    """Return apt-get with private lists, which needs no permissions and leaves the system's lists unchanged."""
    place = home() / "apt"
    for folder in ("lists/partial", "cache/archives/partial"):
        (place / folder).mkdir(parents=True, exist_ok=True)
    (place / "sources.list").write_text(_SOURCES)
    options = {
        "Dir::Etc::sourcelist": place / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": place / "lists",
        "Dir::Cache": place / "cache",
        "APT::Sandbox::User": "",
    }
    return ("apt-get", "-qq", *(f"-o{name}={value}" for name, value in options.items()))


def _run(words: Sequence[str], folder: Path, lack: str) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise Missing(f"{lack} {(done.stderr or done.stdout).strip()[-500:]}")
