"""Who uses a command: an account of the project, which proves itself by its password, or the user of the system."""

import getpass
import os
import sys

from django.contrib.auth import authenticate
from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.command import Options
from django_rmq_retry.parked.operators import Actor

PASSWORD = "RMQ_USER_PASSWORD"  # noqa: S105 - the name of a variable
"""The variable from which a command without a terminal takes the password of ``--user``."""


def add_user(parser: CommandParser) -> None:
    parser.add_argument(
        "--user", metavar="NAME", help=f"act by this account; its password is asked for, or taken from {PASSWORD}"
    )


def actor_of(options: Options) -> Actor:
    """Return who uses the command; the password is asked for once."""
    if "actor" not in options:
        name = options["user"]
        otherwise = f"Set {PASSWORD}."
        options["actor"] = (
            signed_in(name, otherwise=otherwise, given=os.environ.get(PASSWORD)) if name else Actor.of_shell()
        )
    actor: Actor = options["actor"]
    return actor


def signed_in(name: str, *, otherwise: str, given: str | None = None) -> Actor:
    """Return the actor of an account; ``otherwise`` is what to do without a terminal."""
    if given is None:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            text = f"No terminal to enter the password on; nothing was done. {otherwise}"
            raise CommandError(text, returncode=Exit.UNCONFIRMED)
        given = getpass.getpass(f"Password of {name}: ")
    user = authenticate(username=name, password=given)
    if user is None:
        raise CommandError("The name or the password is wrong; nothing was done.", returncode=Exit.UNCONFIRMED)
    return Actor(name=user.get_username(), user_id=user.pk, behalf=Actor.of_shell().behalf, source="cli")
