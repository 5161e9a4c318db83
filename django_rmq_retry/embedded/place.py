"""The folder through which the processes of a project find their embedded broker."""

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django_rmq_retry.errors import ConfigurationError

NOBODY = (
    "The broker embedded:// is not running. Start `manage.py rmq_consume`, which brings it along, or "
    "`manage.py rmq_broker`; or set RMQ_RETRY['URL'] to a RabbitMQ, as amqp://user:password@host:5672/vhost."
)
_NAME = "django-rmq-retry-"
_LOCK, _NOTE, _LOG, _FILE = "lock", "broker.json", "broker.log", "broker.sqlite3"
_TRIES, _PAUSE = 10, 0.05
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotRunning(ConfigurationError):
    """Nobody runs the embedded broker."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(NOBODY)


class AlreadyRunning(ConfigurationError):
    """Somebody else runs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(f"The embedded broker of this project runs already; its log and port stand in {folder}.")


def folder_of(project: str) -> Path:
    """The folder of a project, told apart by its name and place; a user's own, and the same for all processes."""
    digest = hashlib.sha256(project.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"{_NAME}{os.getuid()}" / digest


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a broker listens, and whether a consumer brought it along."""

    port: int
    brought: bool


def port_of(folder: Path) -> int:
    """The port of the broker that runs; NotRunning where none does."""
    return place_of(folder).port


def place_of(folder: Path) -> Place:
    """Where the broker is that runs; NotRunning where none does."""
    if not folder.exists():
        raise NotRunning(folder)
    _check(folder)
    with suppress(OSError, ValueError, KeyError, TypeError):
        if _locked(folder):
            note = json.loads((folder / _NOTE).read_text())
            return Place(port=int(note["port"]), brought=bool(note["brought"]))
    raise NotRunning(folder)


def log_of(folder: Path) -> Path:
    """Where a broker that nobody watches writes what it has to say."""
    return folder / _LOG


def file_of(folder: Path) -> Path:
    """What outlives the broker."""
    return folder / _FILE


def prepare(folder: Path) -> None:
    """Make the folder."""
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)


@contextmanager
def claimed(folder: Path) -> Iterator["Claim"]:
    """Be the broker of this folder for a while; AlreadyRunning where another is."""
    prepare(folder)
    with (folder / _LOCK).open("a") as lock:
        if not any(_taken(lock) for _ in range(_TRIES)):
            raise AlreadyRunning(folder)
        # What a killed broker left behind would pass for ours.
        (folder / _NOTE).unlink(missing_ok=True)
        claim = Claim(folder, lock)
        try:
            yield claim
        finally:
            (folder / _NOTE).unlink(missing_ok=True)


class Claim:
    """The right to be the broker; it ends with the process, however that ends."""

    def __init__(self, folder: Path, lock: IO[str]) -> None:
        self.folder = folder
        self._lock = lock

    def publish(self, port: int, *, brought: bool = False) -> None:
        """Tell where the broker listens, in one piece."""
        draft = self.folder / f"{_NOTE}.{os.getpid()}"
        draft.write_text(json.dumps({"port": port, "pid": os.getpid(), "brought": brought}))
        draft.replace(self.folder / _NOTE)


def _taken(lock: IO[str]) -> bool:
    """Whether the lock is ours now; whoever only looks for a broker holds it for a moment too."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_PAUSE)
        return False
    return True


def _check(folder: Path) -> None:
    """A folder of somebody else's could send us anywhere."""
    for one in (folder.parent, folder) if folder.parent.name.startswith(_NAME) else (folder,):
        found = one.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & _OTHERS_WRITE:
            raise ConfigurationError(
                f"The embedded broker needs {one} to be your own folder, with nobody else writing (chmod go-w)."
            )


def _locked(folder: Path) -> bool:
    """Whether a broker holds the lock: what a dead one left behind is no broker."""
    with (folder / _LOCK).open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        return False
