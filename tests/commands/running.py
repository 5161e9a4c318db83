"""Runs a command as manage.py would, and keeps what it wrote and its exit code."""

import json
import sys
from dataclasses import dataclass
from enum import IntEnum
from io import BytesIO, StringIO, TextIOWrapper
from typing import Any

import pytest
from django.core.management import CommandError, call_command


class Exit(IntEnum):
    """The exit codes in docs/reference/exit-codes.md."""

    DONE = 0
    ERROR = 1
    USAGE = 2
    UNREACHABLE = 3
    DRIFT = 4
    PARTLY = 5
    NOTHING = 6
    UNCONFIRMED = 7
    UNHEALTHY = 8
    ASKED = 9
    INTERRUPTED = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """The result of a command. An error's sentence is in ``err``, as Django would write it there."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        return json.loads(self.out)

    @property
    def lines(self) -> list[list[str]]:
        """The rows of the table that it wrote, cell by cell."""
        return [line.split("\t") for line in self.out.splitlines()]

    @property
    def rows(self) -> list[list[str]]:
        """Those of its tables, without the sentences above and between them."""
        return [cells for cells in self.lines if len(cells) > 1]


class Terminal(StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def run(command: str, *arguments: str, out: StringIO | None = None) -> Ran:
    """No keyboard is attached unless a test attaches one."""
    stdout, stderr = out or StringIO(), StringIO()
    code = 0
    try:
        call_command(command, *arguments, stdout=stdout, stderr=stderr)
    except CommandError as error:
        stderr.write(str(error))
        code = error.returncode
    except SystemExit as end:
        code = int(end.code or 0)
    return Ran(code=code, out=stdout.getvalue(), err=stderr.getvalue())


def parked(*arguments: str, given: bytes | None = None, out: StringIO | None = None) -> Ran:
    """Run `rmq_parked`, with these bytes on its standard input."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdin", TextIOWrapper(BytesIO(given or b"")))
        return run("rmq_parked", *arguments, out=out)
