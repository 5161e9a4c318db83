"""The exit codes of all commands."""

from enum import IntEnum


class Exit(IntEnum):
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
