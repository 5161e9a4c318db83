"""Who acts: a person in the admin, somebody at a shell, or the project's own code."""

import getpass
import socket
from dataclasses import dataclass

from django.http import HttpRequest

from django_rmq_retry.core.verdict import short

NAME_LIMIT = 150


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """One who acts, as the audit log remembers it."""

    name: str
    user_id: int | str | None = None
    """The primary key of the account, where there is one."""
    behalf: str = ""
    ip: str | None = None
    source: str = "code"

    @classmethod
    def of_request(cls, request: HttpRequest) -> "Actor":
        """Whoever is signed in."""
        user = request.user
        return cls(
            name=short(user.get_username(), NAME_LIMIT),
            user_id=user.pk,
            ip=request.META.get("REMOTE_ADDR") or None,
            source="admin",
        )

    @classmethod
    def of_shell(cls) -> "Actor":
        """Whoever runs a command: the user of the operating system."""
        try:
            login = getpass.getuser()
        except (OSError, KeyError):
            login = "unknown"
        return cls(name=short(login, NAME_LIMIT), behalf=short(f"{login}@{socket.gethostname()}", 255), source="cli")

    @classmethod
    def of_code(cls, name: str) -> "Actor":
        """A part of the project that acts by itself."""
        return cls(name=short(name, NAME_LIMIT))
