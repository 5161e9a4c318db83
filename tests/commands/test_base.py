"""The parts that all commands share: codes, streams, colours, questions."""

import fcntl
import io
import os
import select
import struct
import sys
import termios
from collections.abc import Callable
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError

from django_rmq_retry.amqp import Refusal
from django_rmq_retry.errors import BrokerRefused, BrokerUnreachable, RmqRetryError
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.command import Options, RmqCommand, check_known
from tests.commands.running import Terminal
from tests.tooling.machine import open_terminal


class Command(RmqCommand):
    """Ends with the result that it is given."""

    help = "Do it."
    examples = ("do_it", "do_it --twice", "do_it --json")

    def __init__(self, ends: Exit | BaseException | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.ends = ends

    def run(self, options: Options) -> Exit | None:
        if isinstance(self.ends, BaseException):
            raise self.ends
        return self.ends


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (BrokerUnreachable("amqp://rabbit/", "no route"), Exit.UNREACHABLE),
        (BrokerRefused("amqp://rabbit/", "wrong password"), Exit.UNREACHABLE),
        (Refusal(406, "PRECONDITION_FAILED - no"), Exit.DRIFT),
        (RmqRetryError("Something."), Exit.ERROR),
        (ImproperlyConfigured("RMQ_RETRY is wrong."), Exit.ERROR),
    ],
)
def test_an_error_is_one_sentence_and_a_code(error: Exception, code: Exit) -> None:
    with pytest.raises(CommandError) as raised:
        Command(error).handle()

    assert raised.value.returncode == code


def test_ctrl_c_exits_with_130() -> None:
    with pytest.raises(SystemExit) as ended:
        Command(KeyboardInterrupt()).execute(no_color=True, force_color=False, skip_checks=True)

    assert ended.value.code == 130


def test_a_closed_pipe_ends_the_command_silently(monkeypatch: pytest.MonkeyPatch) -> None:
    read, write = os.pipe()
    os.close(read)
    with os.fdopen(write, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)

        Command(BrokenPipeError()).execute(no_color=True, force_color=False, skip_checks=True)

        pipe.write("what was still in its buffer goes nowhere")


def test_the_help_begins_with_three_examples() -> None:
    text = Command().create_parser("manage.py", "do_it").format_help()

    assert "examples:\n  manage.py do_it\n  manage.py do_it --twice\n  manage.py do_it --json\n\nDo it.\n" in text


def test_remarks_go_to_stderr_and_data_to_stdout() -> None:
    out, err = io.StringIO(), io.StringIO()
    command = Command(stdout=out, stderr=err)

    command.line("data")
    command.say("remark")
    command.table([("a", 1), ("bb", 22)])

    assert out.getvalue() == "data\na\t1\nbb\t22\n"
    assert err.getvalue() == "remark\n"


def test_control_characters_in_a_cell_are_escaped() -> None:
    out = io.StringIO()
    Command(stdout=out).table([("a\tb", "c\nd"), ("e", "f")])

    assert out.getvalue() == "a\\tb\tc\\nd\ne\tf\n"


def on_a_terminal(columns: int, write: Callable[[Command], None]) -> list[str]:
    """The lines that a command writes on a terminal of this width."""
    master, slave = open_terminal()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    with os.fdopen(slave, "w", encoding="utf-8") as stream:
        command = Command(stdout=stream, no_color=True)
        write(command)
        command.line("end")
        stream.flush()
        told = b""
        # A terminal hands over what has arrived so far.
        while not told.endswith(b"end\r\n") and select.select([master], [], [], 10)[0]:
            told += os.read(master, 1000)
    os.close(master)
    return told.decode().splitlines()[:-1]


def test_a_row_is_cut_to_the_terminal_width_only_on_request() -> None:
    def write(command: Command) -> None:
        command.table([("1", "abcdefghijkl")], cut=True)
        command.table([("1", "abcdefghi")], cut=True)
        command.table([("1", "abcdefghijkl")])

    assert on_a_terminal(12, write) == ["1  abcdefgh…", "1  abcdefghi", "1  abcdefghijkl"]


def test_a_narrow_terminal_leaves_out_what_is_spare_and_cuts_the_widest_names_in_their_middle() -> None:
    rows = [("ID", "KEY", "TYPE", "ERROR"), ("7", "statement-00017", "mail", "BankDown: no answer")]
    rows.append(("8", "A-1", "", "E"))

    assert on_a_terminal(30, lambda command: command.table(rows, cut=True, spare=["TYPE"])) == [
        "ID  KEY           ERROR",
        " 7  statem…00017  BankDown: n…",
        " 8  A-1           E",
    ]
    assert on_a_terminal(80, lambda command: command.table(rows, cut=True, spare=["TYPE"]))[0].split() == [*rows[0]]


@pytest.mark.parametrize(
    ("answer", "goes_on"), [("yes\n", True), ("YES\n", True), ("y\n", False), ("\n", False), ("", False)]
)
def test_only_a_complete_yes_confirms(answer: str, goes_on: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    keyboard = Terminal(answer)
    monkeypatch.setattr(sys, "stdin", keyboard)
    err = Terminal()
    command = Command(stderr=err)

    try:
        command.confirm("Delete it?", yes=False)
        went_on = True
    except CommandError as error:
        went_on = False
        assert error.returncode == Exit.UNCONFIRMED  # noqa: PT017 - it may also not be raised

    assert went_on is goes_on
    assert err.getvalue().startswith("Delete it? [yes/no] ")


def test_an_unknown_name_gets_the_nearest_or_all_names_suggested() -> None:
    with pytest.raises(CommandError, match=r"There is no queue 'chargee'\. Did you mean charge\?"):
        check_known("queue", ["chargee"], ["charge", "refund"])
    with pytest.raises(CommandError, match=r"There is no queue 'x'\. Known: charge, refund\."):
        check_known("queue", ["x"], ["charge", "refund"])
    check_known("queue", ["charge"], ["charge", "refund"])
