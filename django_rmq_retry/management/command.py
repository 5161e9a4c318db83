"""The base of all commands: exit codes, output, confirmation and the way to broker and database."""

import argparse
import datetime
import difflib
import json
import os
import sys
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from enum import IntEnum
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter, no_translations
from django.db import Error, InterfaceError, OperationalError, connections, models, router
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.utils import DatabaseErrorWrapper

from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.inspection import Inspector, WouldLose
from django_rmq_retry.amqp.refusals import BrokerUnreachable, Refusal
from django_rmq_retry.amqp.session import PATIENCE, Session
from django_rmq_retry.conf import settings
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, RmqRetryError
from django_rmq_retry.messages.tracebacks import short
from django_rmq_retry.models import Declared
from django_rmq_retry.parked import declared
from django_rmq_retry.parked.operators import LABEL
from django_rmq_retry.server import uncertain


class _Pin:
    """A router before all others."""

    def __init__(self, alias: str, labels: Collection[str]) -> None:
        self._alias = alias
        self._labels = labels

    def _placed(self, model: type[models.Model], **_hints: object) -> str | None:
        return self._alias if model._meta.app_label in self._labels else None  # noqa: SLF001 - documented

    db_for_read = db_for_write = _placed


@contextmanager
def pinned(alias: str | None, also: Collection[str] = ()) -> Iterator[None]:
    """Ours, and those of further apps, are read and written there."""
    if alias is None:
        yield
        return
    pin = _Pin(alias, {LABEL, *also})
    router.routers.insert(0, pin)
    try:
        yield
    finally:
        router.routers.remove(pin)


AWAY = (OperationalError, InterfaceError)
LONGEST = 300


def look_without_lock() -> None:
    """Ask each SQLite whether it knows JSON.

    Django asks so in a transaction, from 6.1 on before every command with checks. Where transactions take SQLite's lock
    as they begin, that waits for whoever has it, and then says that this SQLite knows no JSON.
    """
    for connection in connections.all():
        if connection.vendor != "sqlite" or not connection.settings_dict["OPTIONS"].get("transaction_mode"):
            continue
        try:
            with connection.cursor() as cursor:
                cursor.execute("SELECT JSON('{}')")
        except OperationalError:
            # Django says what is the matter.
            continue
        connection.features.supports_json_field = True


def check_without_database(check: Callable[..., None], say: Callable[[str], None]) -> None:
    """Run the checks. A database that is away costs only the checks of field types, for which MariaDB is asked."""
    try:
        check()
    except AWAY:
        away = _away()
        if not away:
            # The error is the check's own, such as a table that is missing.
            raise
        left = ", ".join(f"{alias!r} ({_words(error)})" for alias, error in away.items())
        try:
            check(databases=[alias for alias in connections if alias not in away])
        except AWAY as another:
            names = " and ".join(map(repr, away))
            verb = "does" if len(away) == 1 else "do"
            said = f"A system check queries a database while {names} {verb} not answer: {_words(another)}."
            raise CommandError(f"{said} Start the database, or leave the checks out: --skip-checks.") from another
        say(f"The types of model fields are not checked for a database that does not answer: {left}.")


def _away() -> dict[str, Exception]:
    """The databases to which no fresh connection can be opened, each with its error."""
    found: dict[str, Exception] = {}
    for connection in connections.all():
        fresh = connection.copy()
        try:
            fresh.ensure_connection()
        except AWAY as error:
            found[connection.alias] = error
        except ImproperlyConfigured:
            # No database at all: Django's checks pass over it.
            continue
        finally:
            fresh.close()
    return found


def away(error: BaseException) -> str:
    """Which database is away, as a sentence; empty where the error says something else."""
    alias, connecting = _raised_by(error)
    if not alias or not isinstance(error, AWAY) or not (connecting or uncertain(error)):
        return ""
    said = f"The database {alias!r} does not answer ({_words(error)})."
    return f"{said} Start it, or correct DATABASES[{alias!r}] in the settings."


def _raised_by(error: BaseException) -> tuple[str, bool]:
    """The alias of a database's error, and whether it came from connecting.

    Read from the traceback: the error does not name its database, and connecting again may wait for minutes.
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


Options = dict[str, Any]
LONGEST_PATIENCE = 3600.0


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
    """Django's order of options, and examples as they are written."""


class RmqCommand(BaseCommand):
    """Data goes to stdout, all else to stderr; ``run`` returns the exit code, None for 0."""

    examples: Sequence[str] = ()
    """Three lines that begin the help, without ``manage.py``."""
    common: Sequence[str] = ()
    """Of --timeout and --using those that mean something to it."""
    patience: float | None = None
    """Seconds for an answer of the broker, where --timeout does not tell."""
    also_using: Sequence[str] = ()
    """Other apps whose records are where ours are."""
    # An operator must be able to look although some other app fails its checks.
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
            # A terminal that knows no ✕ shows \u2715; it is no reason to fail.
            with suppress(AttributeError):
                stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]  # of real files only
        super().run_from_argv(argv)

    def execute(self, *args: Any, **options: Any) -> None:
        if not options.get("force_color") and (os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"):
            options["no_color"] = True
        try:
            super().execute(*args, **options)
        except BrokenPipeError:
            _hush()
        except KeyboardInterrupt:
            sys.exit(Exit.INTERRUPTED)
        finally:
            # Also before an exit code of ours: Python's own flush would make 120 of it.
            with _ending_quietly():
                self.stdout.flush()

    # The sentences that the admin shares with the commands would stand among English ones.
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
            if said := away(error):
                raise CommandError(printable(said), returncode=Exit.ERROR) from error
            raise
        if code:
            sys.exit(int(code))

    def line(self, text: str = "", style: str = "") -> None:
        """A line of what was asked for, to stdout; a style is one of Django's: SUCCESS, WARNING, ERROR, NOTICE."""
        self.stdout.write(getattr(self.style, style)(printable(text)) if style else printable(text))

    def say(self, text: str = "") -> None:
        """A remark, to stderr."""
        self.stderr.write(printable(text), lambda remark: remark)

    def table(self, rows: Iterable[Sequence[object]], styles: Sequence[str] = (), *, cut: bool = False) -> None:
        """Columns: aligned on a terminal, divided by tabs elsewhere; ``styles`` has one for each row, or none.

        ``cut``: a terminal's row holds one row, for there is another way to read the whole of it.
        """
        cells = [[printable(str(cell), keep="") for cell in row] for row in rows]
        if not self.stdout.isatty():
            for row in cells:
                self.stdout.write("\t".join(row))
            return
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        most = _columns(self.stdout) if cut else 0
        for number, row in enumerate(cells):
            # The numbers of a table stand below each other by their last digits.
            aligned = (
                cell.rjust(width) if cell.isdigit() else cell.ljust(width)
                for cell, width in zip(row, widths, strict=True)
            )
            text = "  ".join(aligned).rstrip()
            text = f"{text[: most - 1]}…" if 0 < most < len(text) else text
            self.line(text, styles[number] if styles else "")

    def document(self, schema: str, **content: object) -> None:
        """The one JSON document of ``--json``."""
        at = datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        self.stdout.write(json.dumps({"schema": f"rmq_retry.{schema}", "at": at, **content}, indent=2, default=str))

    def confirm(self, question: str, *, yes: bool) -> None:
        """Return only if the answer is yes."""
        if yes:
            return
        if not (sys.stdin.isatty() and self.stderr.isatty()):
            raise CommandError(f"{question} Nobody is here to answer: add --yes.", returncode=Exit.UNCONFIRMED)
        self.stderr.write(f"{printable(question)} [yes/no] ", lambda text: text, ending="")
        self.stderr.flush()
        answer = ""
        with suppress(EOFError):
            answer = input()
        if answer.strip().lower() != "yes":
            raise CommandError("Nothing was done.", returncode=Exit.UNCONFIRMED)


def _columns(stream: Any) -> int:
    """Of a terminal; 0 where nobody can tell."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


@contextmanager
def _ending_quietly() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        _hush()


def _hush() -> None:
    """The reader (head, less) has enough: nothing is left for the flush at exit to trip over."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_yes(parser: CommandParser) -> None:
    parser.add_argument("--yes", "--no-input", "--noinput", dest="yes", action="store_true", help="do not ask")


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")


def add_option(parser: CommandParser, name: str, *, default: object) -> None:
    """--timeout or --using."""
    if name == "timeout":
        known = f"; {default:g} by default" if isinstance(default, float) else ""
        said = f"seconds for each answer of the broker{known}"
        parser.add_argument("--timeout", type=patience, default=default, metavar="SECONDS", help=said)
    else:
        parser.add_argument("--using", default=default, metavar="ALIAS", help="the database that has the records")


def patience(text: str) -> float:
    """An argument: how long to wait for an answer."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= LONGEST_PATIENCE:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0 and up to {LONGEST_PATIENCE:g}, not {text!r}")
    return number


def add_common(parser: CommandParser, common: Iterable[str] = ()) -> None:
    """Options of all acts behind the name of an act too, as are Django's own: it takes them before it only."""
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
    """Refuse a name that is not known, with the nearest one that is."""
    among = list(known)
    for name in names:
        if name in among:
            continue
        near = difflib.get_close_matches(name, among, n=1)
        meant = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(among) or 'none'}."
        raise CommandError(f"There is no {what} {printable(name)!r}. {meant}", returncode=code)


def printable(text: str, keep: str = "\n\t") -> str:
    """Text whose control characters are written out: a name or an error cannot steer the terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() or char in keep else char.encode("unicode_escape").decode() for char in text
    )


PATIENCE_OF_API = 5.0


def remembered(command: RmqCommand) -> list[Declared] | None:
    """What the project has declared; None where the database cannot tell, which is said where it should."""
    try:
        return declared.remembered()
    except declared.Forgetful as error:
        if settings().records:
            command.say(f"What was declared before cannot be looked up: {error}")
        return None


@contextmanager
def declarer(*, timeout: float | None = None) -> Iterator[Declarer]:
    """A Declarer on a session of its own; with a time-out for each step, where it is for a probe."""
    access = settings().access()
    if timeout is not None:
        access = replace(access, connect_timeout=timeout)
    with Session(access, purpose="command", patience=timeout or PATIENCE) as session:
        yield Declarer(session, inspector(timeout=timeout))


def inspector(*, timeout: float | None = None) -> Inspector | None:
    """The management API, where RMQ_RETRY["OPERATORS"]["MANAGEMENT_URL"] names one."""
    url = settings().operators.management_url
    if url is None:
        return None
    return Inspector(url=url, vhost=settings().access().vhost, timeout=timeout or PATIENCE_OF_API)
