"""``make demo`` runs the bank until Ctrl-C, with its own settings in a folder that it deletes at the end."""

import os
import sys
import tempfile
from argparse import ArgumentParser, Namespace
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import django

from django_rmq_retry.errors import RmqRetryError
from testproject.playing.ending import Ending, Trouble, fail
from testproject.playing.place import Place, place

# Variables of the user's shell that would lead to a database or broker of another project.
THEIRS = ("DATABASE_URL", "RMQ_URL_FILE", "ALLOWED_HOSTS", "SECRET_KEY")
# Short waits to watch: a card payment is parked 15 seconds after its first attempt.
WAITS = {"BANK_CHARGE_WAIT": "1", "BANK_CASH_WAIT": "2", "BANK_LEDGER_WAIT": "1"}
SHORT_WAITS = {"BANK_CHARGE_WAIT": "0.6", "BANK_CASH_WAIT": "0.5", "BANK_LEDGER_WAIT": "0.4"}


def main() -> int:
    ending = Ending()
    ending.listen()
    sys.stdout.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # a real file, of a script
    options = arguments()
    try:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bank-demo-")))
            here = stack.enter_context(place(os.environ.get("RMQ_URL", ""), folder))
            prepare(here, folder, SHORT_WAITS if options.check else WAITS)
            # Imported here because these modules need the settings.
            play = import_module("testproject.playing.play").play
            return int(play(here, folder, ending, **vars(options)))
    except (Trouble, RmqRetryError) as error:
        fail(str(error))
        return 1


def arguments() -> Namespace:
    parser = ArgumentParser(description="A small bank at work: payments, some of which fail, and the admin.")
    parser.add_argument("--check", action="store_true", help="play a short scenario, look at its results, and end")
    parser.add_argument("--port", type=int, default=8000, help="where the admin is served, or on the next free port")
    parser.add_argument("--within", type=float, default=55, help="how many seconds --check may take")
    return parser.parse_args()


def prepare(here: Place, folder: Path, waits: dict[str, str]) -> None:
    """Set the settings for this process and its children."""
    for name in THEIRS:
        os.environ.pop(name, None)
    os.environ.update(waits | {name: os.environ[name] for name in waits if name in os.environ})
    os.environ["DATABASE_URL"] = f"sqlite:///{folder / 'bank.sqlite3'}"
    os.environ["RMQ_URL"] = here.url
    os.environ["DEBUG"] = "1"
    os.environ["DJANGO_SETTINGS_MODULE"] = "testproject.settings"
    django.setup()


if __name__ == "__main__":
    sys.exit(main())
