"""The folder where the processes of a project find their embedded broker."""

import fcntl
import hashlib
import json
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from django_rmq_retry.errors import ConfigurationError

NO_BROKER = (
    "The broker embedded:// is not running. Start `manage.py rmq_consume`, which starts it too, or "
    "`manage.py rmq_broker`; or set RMQ_RETRY['URL'] to a RabbitMQ, such as amqp://user:password@host:5672/vhost."
)
LOG_NAME, FILE_NAME = "broker.log", "broker.sqlite3"
"""In the folder: the log of a broker that a consumer started, and the file that survives a broker."""
_NAME = "django-rmq-retry-"
_LOCK, _NOTE = "lock", "broker.json"
_TRIES, _PAUSE_SECONDS = 10, 0.05
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


class NotRunning(ConfigurationError):
    """No embedded broker runs."""

    def __init__(self) -> None:
        super().__init__(NO_BROKER)


class AlreadyRunning(ConfigurationError):
    """Another process runs the embedded broker."""

    def __init__(self, folder: Path) -> None:
        super().__init__(f"The embedded broker of this project is already running. Its log and port are in {folder}.")


def folder_of(project: str) -> Path:
    """Return the folder of a project, identified by its path; one per user, the same for all processes."""
    digest = hashlib.sha256(project.encode()).hexdigest()[:12]
    return Path(tempfile.gettempdir()) / f"{_NAME}{os.getuid()}" / digest


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningBroker:
    """The port of a broker, and whether a consumer started it."""

    port: int
    brought: bool = False


def port_of(folder: Path) -> int:
    """Return the port of the running broker, or raise NotRunning."""
    return place_of(folder).port


def place_of(folder: Path) -> RunningBroker:
    """Return the place of the running broker, or raise NotRunning."""
    if not folder.exists():
        raise NotRunning
    _check(folder)
    with suppress(OSError, ValueError, KeyError, TypeError), (folder / _NOTE).open() as note:
        if _locked(note):
            found = json.load(note)
            return RunningBroker(port=int(found["port"]), brought=bool(found["brought"]))
    raise NotRunning


def prepare(folder: Path) -> None:
    folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    _check(folder)


@contextmanager
def claimed(folder: Path) -> Iterator[Callable[[RunningBroker], None]]:
    """Be the folder's broker while this process lives, or raise AlreadyRunning; yield what publishes the port."""
    prepare(folder)
    draft = folder / f"{_NOTE}.{os.getpid()}"

    with (folder / _LOCK).open("a") as lock, draft.open("w") as note:

        def publish(running: RunningBroker) -> None:
            fcntl.flock(note, fcntl.LOCK_EX)
            json.dump({"port": running.port, "pid": os.getpid(), "brought": running.brought}, note)
            note.flush()
            draft.replace(folder / _NOTE)

        try:
            if not any(_take(lock) for _ in range(_TRIES)):
                raise AlreadyRunning(folder)
            try:
                yield publish
            finally:
                (folder / _NOTE).unlink(missing_ok=True)
        finally:
            draft.unlink(missing_ok=True)


def _take(lock: IO[str]) -> bool:
    """Try to take the lock; a broker that ends holds it for a moment after its note is gone."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        time.sleep(_PAUSE_SECONDS)
        return False
    return True


def _check(folder: Path) -> None:
    """Refuse a folder that another user could write: its note could name any port."""
    for one in (folder.parent, folder) if folder.parent.name.startswith(_NAME) else (folder,):
        status = one.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & _OTHERS_WRITE:
            raise ConfigurationError(
                f"The folder {one} of the embedded broker must be yours, and only you may write to it (chmod go-w)."
            )


def _locked(note: IO[str]) -> bool:
    """True if the broker that wrote this note lives: it keeps the note itself locked."""
    try:
        fcntl.flock(note, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False
