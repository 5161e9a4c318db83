"""``make demo``: the bank in a place of its own, with the admin to play on; nothing of it stays."""

import os
import signal
import subprocess
import sys
import tempfile
from argparse import ArgumentParser
from pathlib import Path
from types import FrameType
from typing import Any

from django.conf import settings
from django.core.management.base import BaseCommand, CommandError

from testproject.playing.place import Place, place

# Short enough to watch.
WAITS = {"BANK_CHARGE_WAIT": "2", "BANK_CASH_WAIT": "3", "BANK_LEDGER_WAIT": "1"}


class Command(BaseCommand):
    help = "Play the bank on a RabbitMQ and a database of its own, then serve the admin until Ctrl-C."
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own shape

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="end after the summary")
        parser.add_argument("--port", type=int, default=8000, help="where the admin is served")

    def handle(self, *_args: Any, once: bool, port: int, **_options: Any) -> None:
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            with tempfile.TemporaryDirectory(prefix="bank-") as folder, place(Path(folder)) as found:
                self.stdout.write(f"The bank opens, on {found.said}.")
                code = _play(found, Path(folder), ["--once"] if once else ["--port", str(port)])
        except KeyboardInterrupt:
            return
        if code:
            raise CommandError("The demo did not end well; what it said stands above.", returncode=code)


def _play(found: Place, folder: Path, words: list[str]) -> int:
    """Run ``manage.py play`` there, and hand it the signals that end it."""
    env = WAITS | os.environ | {"RMQ_URL": found.url, "BANK_MANAGEMENT_URL": found.management, "DEBUG": "1"}
    env.setdefault("DATABASE_URL", f"sqlite:///{folder / 'bank.sqlite3'}")
    command = [sys.executable, str(settings.BASE_DIR / "manage.py"), "play", *words]
    # A session of its own: a Ctrl-C of the terminal reaches it through us, and once.
    child = subprocess.Popen(command, env=env, start_new_session=True)  # noqa: S603 - our own manage.py

    def pass_on(_number: int, _frame: FrameType | None) -> None:
        child.send_signal(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, pass_on)
    return child.wait()
