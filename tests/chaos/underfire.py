"""What the helper processes of a run share: they work until SIGTERM, whatever fails meanwhile."""

import os
import random
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from threading import Event

import django

from tests.chaos.ledger import Ledger


class Helper:
    """A helper process with its ledger and the random numbers of its life."""

    def __init__(self, name: str) -> None:
        os.environ.setdefault("DJANGO_SETTINGS_MODULE", "tests.chaos.project.settings")
        self.stopping = Event()
        signal.signal(signal.SIGTERM, lambda *_: self.stopping.set())
        django.setup()
        self.folder, self.life = Path(os.environ["CHAOS_FOLDER"]), os.environ["CHAOS_LIFE"]
        self.ledger = Ledger(self.folder, f"{name}.{self.life}")
        self.chance = random.Random(f"{os.environ['CHAOS_SEED']}/{name}/{self.life}")


def tried(act: Callable[[], None]) -> bool:
    """Return True if it was done; a connection to the database that failed is closed."""
    from django.db import connection  # noqa: PLC0415 - Django must be set up first

    try:
        act()
    except Exception as error:  # noqa: BLE001 - a helper under fire tries again
        print(f"{error!r}"[:300], file=sys.stderr, flush=True)
        with suppress(Exception):
            connection.close()
        return False
    return True
