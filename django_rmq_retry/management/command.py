"""The base of all commands: exit codes, output, confirmation and access to broker and database."""

import argparse
import difflib
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser, DjangoHelpFormatter, no_translations
from django.db import connections

from django_rmq_retry import database_clock, declared
from django_rmq_retry.amqp import management_api
from django_rmq_retry.amqp.declarer import Declarer
from django_rmq_retry.amqp.inspection import WouldLose
from django_rmq_retry.amqp.refusals import Refusal
from django_rmq_retry.amqp.session import BROKER_ANSWER_SECONDS, Session
from django_rmq_retry.conf import settings
from django_rmq_retry.embedded.place import NotRunning
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, RmqRetryError
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.health.facts import Unmigrated
from django_rmq_retry.management.databases import DatabaseAway, named_errors, pinned, wait_for_locks
from django_rmq_retry.management.terminal import clock, printable, utc
from django_rmq_retry.messages.texts import REASON_CHARACTERS
from django_rmq_retry.models import ApprovalRequest, Declared, RequestState
from django_rmq_retry.parked import approvals
from django_rmq_retry.parked.database import records_alias
from django_rmq_retry.parked.four_eyes import SecondPersonNeeded
from django_rmq_retry.parked.operators import Actor, NotAllowed, NothingChosen, Outdated, Refused

Options = dict[str, Any]
MOST_TIMEOUT_SECONDS = 3600.0
GAP = "  "
"""What separates the columns of a table on a terminal."""


def usage_error(text: str) -> CommandError:
    """Return the error of arguments that do not fit together, or name what cannot be used."""
    return CommandError(text, returncode=Exit.USAGE)


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
        """Run the command, by default its subcommand."""
        act: Callable[[Options], Exit | None] = options["act"]
        return act(options)

    def subcommands(self, parser: CommandParser, *, required: bool = True) -> Callable[..., CommandParser]:
        """Return a function that adds a subcommand: name, what it runs, help, and whether it has ``--json``."""
        actions = parser.add_subparsers(dest="subcommand", required=required, metavar="ACTION")

        def add(name: str, act: Callable[[Options], Exit | None], help: str, *, json: bool = True) -> CommandParser:  # noqa: A002 - as in argparse
            added: CommandParser = actions.add_parser(name, help=help, description=help)
            added.set_defaults(act=act)
            if json:
                add_json(added)
            add_common(added, self.common)
            return added

        return add

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
        with _tolerated_closing():
            try:
                super().execute(*args, **options)
            except KeyboardInterrupt:
                sys.exit(Exit.INTERRUPTED)
            finally:
                # Flush before an exit code of this command: a failed flush by Python would replace it by 120.
                with _tolerated_closing():
                    self.stdout.flush()

    # Translated sentences, which the admin shares with the commands, would mix with English ones.
    @no_translations
    def handle(self, *_args: Any, **options: Any) -> None:
        using = options.get("using")
        _check_lengths(options)
        check_known("database", [using] if using else [], connections)
        wait_for_locks()
        try:
            with pinned(using, self.also_using), named_errors():
                code = self._run_or_ask(options)
        except (BrokerUnreachable, BrokerRefused, NotRunning) as error:
            raise CommandError(str(error), returncode=Exit.UNREACHABLE) from error
        except Refusal as error:
            raise CommandError(error.sentence(), returncode=Exit.DRIFT) from error
        except WouldLose as error:
            raise CommandError(str(error), returncode=Exit.DRIFT) from error
        except (RmqRetryError, ImproperlyConfigured, DatabaseAway) as error:
            raise CommandError(printable(str(error)), returncode=Exit.ERROR) from error
        except Refused as error:
            codes = {NothingChosen: Exit.NOTHING, Outdated: Exit.DRIFT, NotAllowed: Exit.UNCONFIRMED}
            raise CommandError(str(error), returncode=codes.get(type(error), Exit.USAGE)) from error
        except Unmigrated as error:
            raise CommandError(f"Database: {error}", returncode=Exit.ERROR) from error
        if code:
            sys.exit(int(code))

    def _run_or_ask(self, options: Options) -> Exit | None:
        try:
            return self.run(options)
        except SecondPersonNeeded as needed:
            asked = self.ask(needed, options.get("actor") or Actor.of_shell())
            if options.get("json"):
                self.document("approval_request/1", request=request_data(asked, database_clock.now(records_alias())))
            return Exit.ASKED

    def ask(self, needed: SecondPersonNeeded, actor: Actor) -> ApprovalRequest:
        """Ask a second person for the act, and name the request."""
        asked = approvals.ask(needed.wish, actor)
        until = clock(asked.expires_at, terminal=False)
        self.say(f"Nothing was done yet. Request {asked.pk} waits for a second person until {until}.")
        self.say(f"To approve it: the admin, or manage.py rmq_parked approve {asked.pk} --user NAME")
        return asked

    def line(self, text: str = "", style: str = "") -> None:
        """Write a line of data to stdout; a style is one of Django's: SUCCESS, WARNING, ERROR, NOTICE."""
        self.stdout.write(getattr(self.style, style)(printable(text)) if style else printable(text))

    def say(self, text: str = "") -> None:
        """Write a remark to stderr."""
        self.stderr.write(printable(text), lambda remark: remark)

    def table(
        self,
        rows: Iterable[Sequence[object]],
        styles: Sequence[str] = (),
        *,
        cut: bool = False,
        spare: Sequence[str] = (),
    ) -> None:
        """Write columns, aligned on a terminal and separated by tabs elsewhere; ``styles`` is empty or has one per row.

        With ``cut``, the widest columns are cut until a row fits into the terminal's line, after those with a
        ``spare`` heading were left out; another command shows the whole.
        """
        cells = [[printable(str(cell), keep="") for cell in row] for row in rows]
        if not self.stdout.isatty():
            for row in cells:
                self.stdout.write("\t".join(row))
            return
        most = columns(self.stdout) if cut else 0
        cells = _without(spare, cells, most) if most else cells
        widths = _narrowed(_widths(cells), most) if most else _widths(cells)
        for number, row in enumerate(cells):
            ends = len(row) - 1
            fitting = [_cut(cell, widths[place], last=place == ends) for place, cell in enumerate(row)]
            # Align the numbers of a column by their last digits.
            aligned = (
                cell.rjust(width) if cell.isdigit() else cell.ljust(width)
                for cell, width in zip(fitting, widths, strict=True)
            )
            self.line(GAP.join(aligned).rstrip(), styles[number] if styles else "")

    def document(self, schema: str, **content: object) -> None:
        """Write the single JSON document of ``--json``."""
        at = clock(datetime.now(UTC), terminal=False)
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


def _check_lengths(options: Options) -> None:
    """Refuse a reason or remark that could not be stored as it is: its last words may be those that matter."""
    begins = len(f"{options['category']}: ") if options.get("category") else 0
    for name in ("reason", "remark"):
        typed, most = len((options.get(name) or "").strip()), REASON_CHARACTERS - begins
        if typed > most:
            raise usage_error(f"--{name} takes at most {most} characters, not {typed}. Nothing was done.")


def _widths(rows: Sequence[Sequence[str]]) -> list[int]:
    return [max(map(len, column)) for column in zip(*rows, strict=True)]


def _without(spare: Sequence[str], rows: list[list[str]], most: int) -> list[list[str]]:
    """Leave out columns, one after the other, until the others fit into a line of which the last has a good part."""
    for heading in spare:
        widths = _widths(rows)
        if sum(widths[:-1]) + len(GAP) * len(widths[:-1]) + min(widths[-1], most // 3) <= most:
            break
        place = rows[0].index(heading)
        rows = [[*row[:place], *row[place + 1 :]] for row in rows]
    return rows


def _narrowed(widths: list[int], most: int) -> list[int]:
    """Narrow the widest columns until all fit into a line."""
    room = max(most - len(GAP) * (len(widths) - 1), len(widths))
    while sum(widths) > room:
        widths[widths.index(max(widths))] -= 1
    return widths


def _cut(cell: str, width: int, *, last: bool) -> str:
    """Cut a name in its middle, because such names differ at their ends, and the text in the last column at its end."""
    if len(cell) <= width:
        return cell
    tail = 0 if last else (width - 1) // 2
    return f"{cell[: width - 1 - tail]}…{cell[len(cell) - tail :]}"


def request_data(one: ApprovalRequest, now: datetime) -> dict[str, object]:
    """Return a request for a second person as JSON data."""
    expired = one.state == RequestState.WAITING and not one.waits(now)
    names = ("act", "count", "subject", "reason", "by", "behalf", "decided_by", "remark", "changed", "run")
    times = {name: utc(getattr(one, name)) for name in ("asked_at", "expires_at", "decided_at")}
    state = "expired" if expired else str(one.state)
    return {
        "id": one.pk,
        "state": state,
        "account": bool(one.by_key),
        **{name: getattr(one, name) for name in names},
        **times,
    }


def columns(stream: Any) -> int:
    """Return the terminal's columns; 0 if they are unknown."""
    try:
        return os.get_terminal_size(stream.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


@contextmanager
def _tolerated_closing() -> Iterator[None]:
    """Ignore that the reader of stdout (head, less) has closed it; redirect it, so that no later flush fails."""
    try:
        yield
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def add_yes(parser: CommandParser) -> None:
    parser.add_argument(
        "--yes", "--no-input", "--noinput", dest="yes", action="store_true", help="do not ask for confirmation"
    )


def add_json(parser: CommandParser) -> None:
    parser.add_argument("--json", action="store_true", help="write one JSON document to stdout")


def add_option(parser: CommandParser, name: str, *, default: object) -> None:
    if name == "timeout":
        known = f"; {default:g} by default" if isinstance(default, float) else ""
        text = f"seconds to wait for each answer of the broker{known}"
        parser.add_argument("--timeout", type=patience, default=default, metavar="SECONDS", help=text)
    else:
        parser.add_argument(
            "--using", default=default, metavar="ALIAS", help="alias of the database that stores the records"
        )


def patience(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number <= MOST_TIMEOUT_SECONDS:
        raise argparse.ArgumentTypeError(f"takes seconds, more than 0 and up to {MOST_TIMEOUT_SECONDS:g}, not {text!r}")
    return number


def add_common(parser: CommandParser, common: Iterable[str] = ()) -> None:
    """Accept the common options after a subcommand's name too; Django accepts its own only before it."""
    for name in common:
        add_option(parser, name, default=argparse.SUPPRESS)
    hidden: Any = {"default": argparse.SUPPRESS, "help": argparse.SUPPRESS}
    for name in ("--no-color", "--force-color", "--traceback"):
        parser.add_argument(name, action="store_true", **hidden)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name, **hidden)
    parser.add_argument("-v", "--verbosity", type=int, choices=range(4), **hidden)


def check_known(what: str, names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse an unknown name, and suggest the nearest known one."""
    among = list(known)
    for name in names:
        if name in among:
            continue
        near = difflib.get_close_matches(name, among, n=1)
        meant = f"Did you mean {near[0]}?" if near else f"Known: {', '.join(among) or 'none'}."
        raise CommandError(f"There is no {what} {printable(name)!r}. {meant}", returncode=Exit.USAGE)


def remembered(command: RmqCommand) -> list[Declared] | None:
    """Return the project's declared objects; if the database is not readable, return None and write a remark."""
    try:
        return declared.load()
    except declared.DeclarationsUnavailable as error:
        if settings().records:
            command.say(f"Earlier declarations cannot be read from the database: {error}")
        return None


@contextmanager
def open_declarer(*, timeout: float | None = None) -> Iterator[Declarer]:
    """Open a Declarer on a session of its own, with a timeout for each step if one is given, as for a probe."""
    access = settings().access()
    if timeout is not None:
        access = replace(access, connect_timeout=timeout)
    with Session(access, purpose="command", patience=timeout or BROKER_ANSWER_SECONDS) as session:
        yield declared.declarer_on(session, api_timeout=timeout or management_api.API_ANSWER_SECONDS)
