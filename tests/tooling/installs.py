"""The RabbitMQ versions on this machine: native, or in Debian chroots made by `make brokers`."""

import os
from dataclasses import dataclass
from pathlib import Path

HOMES = "usr/lib/rabbitmq/lib"
# The node has its own /proc, /dev and data folder, which end with the process.
ENTER = (
    'mount --rbind /proc "$1/proc" && mount --rbind /dev "$1/dev" && mount --bind "$2" "$1/srv/node"'
    ' && root=$1 && shift 2 && exec chroot "$root" "$@"'
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Install:
    """One installed RabbitMQ; `home` is a path inside `root`."""

    version: str
    root: Path
    home: Path

    @property
    def native(self) -> bool:
        """True if it is installed in this machine's own file system."""
        return self.root == Path("/")

    def inner(self, folder: Path) -> Path:
        """Return the data folder's path inside the installation."""
        return folder if self.native else Path("/srv/node")

    def command(self, folder: Path, *words: str) -> list[str]:
        """Return the command line inside this installation; the process keeps its pid."""
        if self.native:
            return list(words)
        enter = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--mount"]
        return [*enter, "sh", "-c", ENTER, "sh", str(self.root), str(folder), *words]


def chroots() -> list[Path]:
    """The folders that may hold a chroot."""
    named = os.environ.get("RMQ_TEST_CHROOTS")
    if named is not None:
        return [Path(name) for name in named.split(":") if name]
    return sorted(path for path in default_chroots().glob("*") if path.is_dir())


def default_chroots() -> Path:
    """The folder where `make brokers` puts chroots, shared by all clones of this user."""
    return cache() / "brokers"


def cache() -> Path:
    """The cache of fetched files, shared by all clones of this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "django-rmq-retry"


def installs() -> list[Install]:
    """Return every installation, the native one first."""
    found = []
    for root in [Path("/"), *chroots()]:
        for home in sorted((root / HOMES).glob("rabbitmq_server-*")):
            version = home.name.partition("-")[2]
            found.append(Install(version=version, root=root, home=Path("/") / home.relative_to(root)))
    return found


def install_for(version: str | None) -> Install | None:
    """Return the installation of `version` ("4.0" means any 4.0.x), or the first one."""
    for install in installs():
        if version is None or f"{install.version}.".startswith(f"{version}."):
            return install
    return None
