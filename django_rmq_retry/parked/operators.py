"""Operators and their permissions."""

import getpass
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry.conf import settings
from django_rmq_retry.messages.tracebacks import short

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


LABEL = "rmq_retry"
FEW = 25
"""So many messages may be requeued at once by whoever may requeue; more need bulk_requeue."""

PERMISSIONS: Mapping[str, tuple[str, Any]] = {
    "view": ("view_parkedmessage", gettext_lazy("Can view parked message")),
    "view_group": ("view_errorgroup", gettext_lazy("Can view error group")),
    "view_run": ("view_requeuerun", gettext_lazy("Can view requeue run")),
    "view_status": ("view_livestatus", gettext_lazy("Can view live status")),
    "view_queue": ("view_queuecontrol", gettext_lazy("Can view queue control")),
    "view_key": ("view_blockedkey", gettext_lazy("Can view blocked key")),
    "view_outbox": ("view_outboxmessage", gettext_lazy("Can view message to be published")),
    "view_audit": ("view_operatoraction", gettext_lazy("Can view action")),
    "view_all_audit": ("view_all_operatoraction", gettext_lazy("Can see what others did")),
    "view_payload": ("view_payload", gettext_lazy("Can see message bodies and headers")),
    "reveal": ("reveal_field", gettext_lazy("Can reveal a masked field")),
    "view_traceback": ("view_traceback", gettext_lazy("Can see tracebacks")),
    "requeue": ("requeue", gettext_lazy("Can requeue messages")),
    "bulk_requeue": ("bulk_requeue", gettext_lazy("Can requeue many messages at once")),
    "edit": ("edit_requeue", gettext_lazy("Can edit a message and requeue it")),
    "discard": ("discard", gettext_lazy("Can discard and restore messages")),
    "restore": ("discard", gettext_lazy("Can discard and restore messages")),
    "hold": ("hold", gettext_lazy("Can hold messages")),
    "unhold": ("hold", gettext_lazy("Can hold messages")),
    "export": ("export", gettext_lazy("Can export messages")),
    "note": ("note_errorgroup", gettext_lazy("Can note on and mute error groups")),
    "pause_queue": ("pause_queue", gettext_lazy("Can pause and resume queues")),
    "retry": ("retry_outboxmessage", gettext_lazy("Can retry failed messages of the outbox")),
    "unblock": ("unblock_blockedkey", gettext_lazy("Can unblock ordering keys")),
    "control": ("control_requeuerun", gettext_lazy("Can pause, slow and stop requeue runs")),
}
"""What each verb needs."""


def refusal(user: Any, verb: str, message: object = None) -> str:
    """Nothing if the user may, else why not, in a sentence; with a message the project's own rules are asked too."""
    codename, name = PERMISSIONS[verb]
    if not getattr(user, "is_active", False):
        return _("Your account is not active.")
    if not user.has_perm(f"{LABEL}.{codename}"):
        return _("You need the permission “%(name)s”.") % {"name": name} + _asking()
    return _by_the_project(user, verb, message)


def requeue_refusal(user: Any, count: int) -> str:
    """As ``refusal``, for so many messages at once."""
    return refusal(user, "requeue" if count <= FEW else "bulk_requeue")


def ruled(user: Any) -> bool:
    """Whether the project's own rules are asked about each message."""
    return settings().operators.permit is not None and not user.is_superuser


def unruled() -> str:
    """Why not, where there is no message that they could be asked about."""
    return _("The project's rules do not allow it.") + _asking()


def _by_the_project(user: Any, verb: str, message: object) -> str:
    permit = settings().operators.permit
    if permit is None or message is None or not ruled(user):
        return ""
    answer = permit(user, verb, message)
    if answer is True or answer == "":
        return ""
    return answer + _asking() if isinstance(answer, str) else unruled()


def _asking() -> str:
    contact = settings().operators.contact
    return " " + _("Ask: %(contact)s.") % {"contact": contact} if contact else ""


class Refused(Exception):
    """Nothing was done; the text says why, and what to do."""


class NothingChosen(Refused):
    """No message is chosen, or none is left of those that were."""


class Outdated(Refused):
    """What somebody looked at is no longer so: a token is too old, or a record was changed meanwhile."""


class NotAllowed(Refused):
    """A permission is missing, or the project's own rules say no."""
