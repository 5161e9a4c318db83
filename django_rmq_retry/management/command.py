"""The base of all commands: exit codes, output, confirmation and access to broker and database."""

import argparse
import difflib
import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from enum import IntEnum
from typing import Any

from django.apps import apps
from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter, no_translations
from django.db import Error, InterfaceError, OperationalError, connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseErrorWrapper
from django.utils import timezone

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.inspection import WouldLose
from django_rmq_retry.amqp.management_api import Inspector
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import ANSWER_SECONDS, Session
from django_rmq_retry.conf import settings
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, RmqRetryError
from django_rmq_retry.health.facts import Unmigrated
from django_rmq_retry.management.terminal import printable
from django_rmq_retry.messages.texts import short
from django_rmq_retry.models import Declared
from django_rmq_retry.parked import declared
from django_rmq_retry.parked.operators import LABEL
from django_rmq_retry.server import uncertain

AWAY = (OperationalError, InterfaceError)
LONGEST = 300
UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
"""The units of ages, in seconds."""

Options = dict[str, Any]
LONGEST_PATIENCE = 3600.0

PATIENCE_OF_API = 5.0


class _Pin:
    """A database router that goes before all others."""

    def __init__(self, alias: str, labels: Collection[str]) -> None:
        self._alias = alias
        self._labels = labels

    def _placed(self, model: type[models.Model], **_hints: object) -> str | None:
        return self._alias if model._meta.app_label in self._labels else None  # noqa: SLF001 - documented

    db_for_read = db_for_write = _placed


@contextmanager
def pinned(alias: str | None, also: Collection[str] = ()) -> Iterator[None]:
    """Read and write the models of this package, and of the apps in ``also``, in the given database."""
    if alias is None:
        yield
        return
    pin = _Pin(alias, {LABEL, *also})
    router.routers.insert(0, pin)
    try:
        yield
    finally:
        router.routers.remove(pin)


def look_without_lock() -> None:
    """Ask each SQLite database if it supports JSON, without a lock.

    Django asks in a transaction, from 6.1 on before every command with checks. If transactions take SQLite's lock at
    their start, that query waits for the lock's owner, and then Django reports that this SQLite has no JSON support.
    """
    for connection in connections.all():
        if connection.vendor != "sqlite" or not connection.settings_dict["OPTIONS"].get("transaction_mode"):
            continue
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT JSON('{}')")
        except OperationalError:
            # Django reports the problem.
            continue
        connection.features.supports_json_field = True


def check_without_database(check: Callable[..., None], say: Callable[[str], None]) -> None:
    """Run the checks; without a database, skip only the checks of field types, which query MariaDB."""
    try:
        check()
    except AWAY:
        away = _away()
        if not away:
            # The error comes from the check itself, such as a missing table.
            raise
        left = ", ".join(f"{alias!r} ({_words(error)})" for alias, error in away.items())
        try:
            check(databases=[alias for alias in connections if alias not in away])
        except AWAY as another:
            names = " and ".join(map(repr, away))
            verb = "does" if len(away) == 1 else "do"
            text = f"A system check queries a database while {names} {verb} not answer: {_words(another)}."
            raise CommandError(f"{text} Start the database, or pass --skip-checks.") from another
        say(f"The checks skip the types of model fields, because a database does not answer: {left}.")


def _away() -> dict[str, Exception]:
    """Return the databases that accept no new connection, each with its error."""
    errors: dict[str, Exception] = {}
    for connection in connections.all():
        fresh = connection.copy()
        try:
            fresh.ensure_connection()
        except AWAY as error:
            errors[connection.alias] = error
        except ImproperlyConfigured:
            # No database is configured here, so Django's checks skip it.
            continue
        finally:
            fresh.close()
    return errors


def away(error: BaseException) -> str:
    """Return a sentence that names the unreachable database; empty if the error has another cause."""
    alias, connecting = _raised_by(error)
    if not alias or not isinstance(error, AWAY) or not (connecting or uncertain(error)):
        return ""
    text = f"The database {alias!r} does not answer ({_words(error)})."
    return f"{text} Start it, or correct DATABASES[{alias!r}] in the settings."


def unmigrated(error: BaseException) -> str:
    """Return a sentence if the error's database lacks tables of this package; empty if it has them all."""
    alias, _ = _raised_by(error)
    if not alias:
        return ""
    options = [model._meta for model in apps.get_app_config(LABEL).get_models()]  # noqa: SLF001 - documented
    needed = {one.db_table for one in options if one.managed}
    try:
        there = set(connections[alias].introspection.table_names())
    except Error:
        return ""
    return "" if needed <= there else f"Database: {Unmigrated(alias)}"


def _raised_by(error: BaseException) -> tuple[str, bool]:
    """Return the alias of the error's database, and True if the error came from connecting.

    Both are read from the traceback: the error does not name its database, and a new connection may take minutes.
    """
    alias, connecting = "", False
    for frame, _ in traceback.walk_tb(error.__traceback__):
        owner = frame.f_locals.get("self")
        if isinstance(owner, DatabaseErrorWrapper):
            alias = owner.wrapper.alias  # type: ignore[attr-defined]  # missing in the stubs
        connecting |= isinstance(owner, BaseDatabaseWrapper) and frame.f_code.co_name == "connect"
    return alias, connecting


def _words(error: Exception) -> str:
    return short(" ".join(str(error.args[-1] if error.args else error).split()) or type(error).__name__, LONGEST)


def clock(at: datetime | None, *, terminal: bool) -> str:
    """Format a time: its age on a terminal, the full time elsewhere."""
    if at is None:
        return "-"
    if not terminal:
        return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
    seconds = (timezone.now().astimezone(UTC) - at.astimezone(UTC)).total_seconds()
    for unit, size in reversed(UNITS.items()):
        if abs(seconds) >= size and unit != "w":
            return f"{abs(seconds) / size:.0f} {unit}{' ago' if seconds > 0 else ' ahead'}"
    return "now"


class Exit(IntEnum):
    """The exit codes, the same for all commands."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    DRIFT = 4
    PARTLY = 5
    NOTHING = 6
    UNCONFIRMED = 7
    UNHEALTHY = 8
    INTERRUPTED = 130


class HelpFormatter(argparse.RawDescriptionHelpFormatter, DjangoHelpFormatter):
    """Django's order of options, with examples printed as they are written."""


class RmqCommand(BaseCommand):
    """The base of all commands.

    Data goes to stdout, all else to stderr; ``run`` returns the exit code, None for 0.
    """

    examples: Sequence[str] = ()
    """Three example lines for the start of the help, without ``manage.py``."""
    common: Sequence[str] = ()
    """Those of the options --timeout and --using that the command accepts."""
    patience: float | None = None
    """Default seconds for --timeout, the wait for each answer of the broker."""
    also_using: Sequence[str] = ()
    """Other apps whose models are in the same database as this package's."""
    # Commands for inspection must run even if another app fails its checks.
    requires_system_checks: list[str] = []  # noqa: RUF012  # Django's own shape

    def run(self, options: Options) -> Exit | None:
        raise NotImplementedError

    def create_parser(self, prog_name: str, subcommand: str, **kwargs: Any) -> CommandParser:
        lines = [f"  manage.py {example}" for example in self.examples]
        description = "\n".join(["examples:", *lines, "", self.help]) if lines else self.help
        parser = super().create_parser(prog_name, subcommand, formatter_class=HelpFormatter, **kwargs)
        parser.description = description
        for name in self.common:
            add_option(parser, name, default=self.patience if name == "timeout" else None)
        return parser

    def run_from_argv(self, argv: list[str]) -> None:
        for stream in (sys.stdout, sys.stderr):
            # A terminal whose encoding has no ✕ shows \u2715; it must not fail.
            with suppress(AttributeError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # of real files only
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> None:
        if not options.get("force_color") and (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"):
            options["no_color"] = True
        try:
            super().execute(*args, **options)
        except BrokenPipeError:
            _discard_stdout()
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)
        finally:
            # Flush before an exit code of this command: a failed flush by Python would replace it by 120.
            with _ending_quietly():
                self.stdout.flush()

    # Translated sentences, which the admin shares with the commands, would mix with English ones.
    @no_translations
    def handle(self, *_args: Any, **options: Any) -> None:
        using = options.get("using")
        check_known("database", [using] if using else [], connections)
        try:
            with pinned(using, self.also_using):
                code = self.run(options)
        except (BrokerUnreachable, BrokerRefused, NotRunning) as error:
            raise CommandError(str(error), returncode=Exit.UNREACHABLE) from error
        except Refusal as error:
            raise CommandError(error.sentence(), returncode=Exit.DRIFT) from error
        except WouldLose as error:
            raise CommandError(str(error), returncode=Exit.DRIFT) from error
        except (RmqRetryError, ImproperlyConfigured) as error:
            raise CommandError(str(error), returncode=Exit.ERROR) from error
        except Error as error:
            if text := away(error) or unmigrated(error):
                raise CommandError(printable(text), returncode=Exit.ERROR) from error
            raise
        if code:
            sys.exit(int(code))

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line of data to stdout; a style is one of Django's: SUCCESS, WARNING, ERROR, NOTICE."""
        self.stdout.write(getattr(self.style, style)(printable(text)) if style else printable(text))

    def say(self, text: str = "") -> None:
        """Write a remark to stderr."""
        self.stderr.write(printable(text), lambda remark: remark)

    def table(self, rows: Iterable[Sequence[object]], styles: Sequence[str] = (), *, cut: bool = False) -> None:
        """Write columns, aligned on a terminal and separated by tabs elsewhere; ``styles`` is empty or has one per row.

        With ``cut``, a row longer than the terminal's line is cut; another command shows the whole of it.
        """
        cells = [[printable(str(cell), keep="") for cell in row] for row in rows]
        if not self.stdout.isatty():
            for row in cells:
                self.stdout.write("\t".join(row))
            return
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        most = columns(self.stdout) if cut else 0
        for number, row in enumerate(cells):
            # Align the numbers of a column by their last digits.
            aligned = (
                cell.rjust(width) if cell.isdigit() else cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            )
            text = "  ".join(aligned).rstrip()
            text = f"{text[: most - 1]}…" if 0 < most < len(text) else text
            self.line(text, styles[number] if styles else "")

    def document(self, schema: str, **content: object) -> None:
        """Write the single JSON document of ``--json``."""
        at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.stdout.write(json.dumps({"schema": f"rmq_retry.{schema}", "at": at, **content}, indent=2, default=str))

    def confirm(self, question: str, *, yes: bool, option: str = "--yes") -> None:
        """Return only if the answer is yes, else raise CommandError; the option gives the answer without a terminal."""
        if yes:
            return
        if not (sys.stdin.isatty() and self.stderr.isatty()):
            raise CommandError(f"{question} No terminal to confirm on. Pass {option}.", returncode=Exit.UNCONFIRMED)
        self.stderr.write(f"{printable(question)} [yes/no] ", lambda text: text, ending="")
        self.stderr.flush()
        answer = ""
        with suppress(EOFError):
            answer = input()
        if answer.strip().lower() != "yes":
            raise CommandError("Not confirmed; nothing was changed.", returncode=Exit.UNCONFIRMED)


def columns(stream: Any) -> int:
    """Return the terminal's columns; 0 if they are unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


@contextmanager
def _ending_quietly() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        _discard_stdout()


def _discard_stdout() -> None:
    """Redirect stdout, whose reader (head, less) has closed it, so that the flush at exit does not fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_yes(parser: CommandParser) -> None:
    parser.add_argument(
        "--yes", "--no-input", "--noinput", dest="yes", action="store_true", help="do not ask for confirmation"
    )


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="write one JSON document to stdout")


def add_option(parser: CommandParser, name: str, *, default: object) -> None:
    """Add --timeout or --using."""
    if name == "timeout":
        known = f"; {default:g} by default" if isinstance(default, float) else ""
        text = f"seconds to wait for each answer of the broker{known}"
        parser.add_argument("--timeout", type=patience, default=default, metavar="SECONDS", help=text)
    else:
        parser.add_argument(
            "--using", default=default, metavar="ALIAS", help="alias of the database that stores the records"
        )


def patience(text: str) -> float:
    """Parse an argument: the seconds to wait for an answer."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= LONGEST_PATIENCE:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0 and up to {LONGEST_PATIENCE:g}, not {text!r}")
    return number


def add_common(parser: CommandParser, common: Iterable[str] = ()) -> None:
    """Accept the common options after a subcommand's name too; Django accepts its own only before it."""
    for name in common:
        add_option(parser, name, default=argparse.SUPPRESS)
    for name in ("--no-color", "--force-color", "--traceback"):
        parser.add_argument(name, action="store_true", default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    levels = range(4)
    parser.add_argument(
        "-v", "--verbosity", type=int, choices=levels, default=argparse.SUPPRESS, help=argparse.SUPPRESS
    )


def check_known(what: str, names: Iterable[str], known: Iterable[str], *, code: Exit = Exit.USAGE) -> None:
    """Refuse an unknown name, and suggest the nearest known one."""
    among = list(known)
    for name in names:
        if name in among:
            continue
        near = difflib.get_close_matches(name, among, n=1)
        meant = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(among) or 'none'}."
        raise CommandError(f"There is no {what} {printable(name)!r}. {meant}", returncode=code)


def remembered(command: RmqCommand) -> list[Declared] | None:
    """Return the project's declared objects; if the database is not readable, return None and write a remark."""
    try:
        return declared.load()
    except declared.DeclarationsUnavailable as error:
        if settings().records:
            command.say(f"Earlier declarations cannot be read from the database: {error}")
        return None


@contextmanager
def declarer(*, timeout: float | None = None) -> Iterator[Declarer]:
    """Open a Declarer on a session of its own, with a timeout for each step if one is given, as for a probe."""
    access = settings().access()
    if timeout is not None:
        access = replace(access, connect_timeout=timeout)
    with Session(access, purpose="command", patience=timeout or ANSWER_SECONDS) as session:
        yield Declarer(session, inspector(timeout=timeout))


def inspector(*, timeout: float | None = None) -> Inspector | None:
    """Return the management API of RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"]; None if that is not set."""
    url = settings().operators.management_url
    if url is None:
        return None
    return Inspector(url=url, vhost=settings().access().vhost, timeout=timeout or PATIENCE_OF_API)
