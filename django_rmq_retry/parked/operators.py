"""Operators: who acts, what they may do, and why an action is refused."""

import getpass
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from django.contrib.auth import get_user_model
from django.http import HttpRequest
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from django_rmq_retry.conf import settings
from django_rmq_retry.messages.texts import COLUMN_BYTES, short
from django_rmq_retry.models import ParkedMessage

OPERATOR_NAME_LIMIT = 150
LABEL = "rmq_retry"
MOST_WITHOUT_BULK = 25
"""Largest number of messages that the permission requeue allows at once; more need bulk_requeue."""

REASON_FROM = 100
"""Largest number of messages that can be sent without a reason."""

Allowed = Callable[[ParkedMessage], str]
"""Returns an empty string, or the reason why this message must not be changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Approval:
    """The approval of an act by a second person."""

    request: int
    by: str
    user_id: int | str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Actor:
    """The originator of an action, as stored in the audit log."""

    name: str
    user_id: int | str | None = None
    """The primary key of the account, if there is one."""
    behalf: str = ""
    ip: str | None = None
    source: str = "code"
    approval: Approval | None = None

    @classmethod
    def of_request(cls, request: HttpRequest) -> "Actor":
        user = request.user
        return cls(
            name=short(user.get_username(), OPERATOR_NAME_LIMIT),
            user_id=user.pk,
            ip=request.META.get("REMOTE_ADDR") or None,
            source="admin",
        )

    @classmethod
    def of_shell(cls) -> "Actor":
        """Return the actor for a command: the user of the operating system.

        The name is that of the login, which the environment may change. The account in ``behalf`` cannot be changed.
        """
        try:
            login = getpass.getuser()
        except (OSError, KeyError):
            login = "unknown"
        behalf = f"{account(login)}@{socket.gethostname()}"
        return cls(name=short(login, OPERATOR_NAME_LIMIT), behalf=short(behalf, COLUMN_BYTES), source="cli")

    @classmethod
    def of_code(cls, name: str) -> "Actor":
        """Return the actor for a part of the project that acts without an operator."""
        return cls(name=short(name, OPERATOR_NAME_LIMIT))


PERMISSIONS: Mapping[str, tuple[str, Any]] = {
    "view": ("view_parkedmessage", gettext_lazy("Can view parked message")),
    "view_group": ("view_errorgroup", gettext_lazy("Can view error group")),
    "view_run": ("view_requeuerun", gettext_lazy("Can view requeue run")),
    "view_status": ("view_livestatus", gettext_lazy("Can view live status")),
    "view_queue": ("view_queuecontrol", gettext_lazy("Can view queue")),
    "view_key": ("view_blockedkey", gettext_lazy("Can view blocked key")),
    "view_outbox": ("view_outboxmessage", gettext_lazy("Can view outbox message")),
    "view_audit": ("view_operatoraction", gettext_lazy("Can view action")),
    "view_request": ("view_approvalrequest", gettext_lazy("Can view approval request")),
    "approve": ("approve_approvalrequest", gettext_lazy("Can approve and reject the acts of other operators")),
    "view_all_audit": ("view_all_operatoraction", gettext_lazy("Can view the actions of other operators")),
    "view_payload": ("view_payload", gettext_lazy("Can see message bodies and headers")),
    "reveal": ("reveal_field", gettext_lazy("Can reveal a masked field")),
    "view_traceback": ("view_traceback", gettext_lazy("Can see tracebacks")),
    "requeue": ("requeue", gettext_lazy("Can requeue messages")),
    "bulk_requeue": ("bulk_requeue", gettext_lazy("Can requeue many messages at once")),
    "edit": ("edit_requeue", gettext_lazy("Can edit a message and requeue it")),
    "bulk_edit": ("bulk_edit", gettext_lazy("Can edit many messages at once")),
    "discard": ("discard", gettext_lazy("Can discard and restore messages")),
    "restore": ("discard", gettext_lazy("Can discard and restore messages")),
    "hold": ("hold", gettext_lazy("Can hold messages")),
    "unhold": ("hold", gettext_lazy("Can hold messages")),
    "export": ("export", gettext_lazy("Can export messages")),
    "note": ("note_errorgroup", gettext_lazy("Can annotate and mute error groups")),
    "pause_queue": ("pause_queue", gettext_lazy("Can pause and resume queues")),
    "send_waiting": ("send_waiting", gettext_lazy("Can send waiting retries before they are due")),
    "retry": ("retry_outboxmessage", gettext_lazy("Can retry failed messages of the outbox")),
    "discard_outbox": ("discard_outboxmessage", gettext_lazy("Can discard failed messages of the outbox")),
    "unblock": ("unblock_blockedkey", gettext_lazy("Can unblock ordering keys")),
    "control": ("control_requeuerun", gettext_lazy("Can pause, slow and stop requeue runs")),
}
"""The permission that each verb needs, by its code name and its label."""


NEEDED: Mapping[str, tuple[str, ...]] = {
    "bulk_requeue": ("requeue", "bulk_requeue"),
    "edit": ("edit", "view_payload", "requeue"),
    "bulk_edit": ("edit", "view_payload", "requeue", "bulk_edit"),
}
"""Actions that need more than one permission."""


def user_of(number: int | str | None) -> Any:
    """Return the user with this primary key; None if there is none any more."""
    if number is None:
        return None
    return get_user_model()._default_manager.filter(pk=number).first()  # noqa: SLF001 - Django's own way


def account(otherwise: str) -> str:
    """Return the account under which this process runs, by its user id; ``otherwise`` on systems without such ids."""
    try:
        accounts, number = import_module("pwd"), os.getuid()
    except (ImportError, AttributeError):
        return otherwise
    try:
        return accounts.getpwuid(number).pw_name or f"uid:{number}"
    except KeyError:
        # Not a name from the environment, which everybody can change: an approval may depend on it.
        return f"uid:{number}"


def refusal(user: Any, verb: str, message: object = None) -> str:
    """Return why the user must not do this, as a sentence; empty if the user may.

    With a message, the project's own rules are checked too.
    """
    codename, name = PERMISSIONS[verb]
    if not getattr(user, "is_active", False):
        return _("Your account is not active.")
    if not user.has_perm(f"{LABEL}.{codename}"):
        return _("You need the permission “%(name)s”.") % {"name": name} + _contact()
    return _own_rules(user, verb, message)


def requeue_refusal(user: Any, count: int) -> str:
    """Return why the user must not requeue ``count`` messages at once; empty if the user may."""
    return refusal(user, "requeue" if count <= MOST_WITHOUT_BULK else "bulk_requeue")


def lacks_reason(count: int, reason: str) -> str:
    """Return why so many messages need a reason; empty if they have one, or need none."""
    if count <= REASON_FROM or reason.strip():
        return ""
    return _("Enter a reason: it is required for more than %(count)s messages.") % {"count": REASON_FROM}


def has_own_rules(user: Any) -> bool:
    """True if the project's own rules are checked for each message."""
    return settings().operators.permit is not None and not user.is_superuser


def own_rules_refusal() -> str:
    """Return the refusal by the project's rules where they give no text, or cannot be checked without a message."""
    return _("The project's rules do not allow it.") + _contact()


def _own_rules(user: Any, verb: str, message: object) -> str:
    permit = settings().operators.permit
    if permit is None or message is None or not has_own_rules(user):
        return ""
    answer = permit(user, verb, message)
    if answer is True or answer == "":
        return ""
    return answer + _contact() if isinstance(answer, str) else own_rules_refusal()


def _contact() -> str:
    contact = settings().operators.contact
    return " " + _("Contact: %(contact)s.") % {"contact": contact} if contact else ""


class Refused(Exception):
    """The action was refused, and nothing was changed; the text gives the reason and the remedy."""


class NothingChosen(Refused):
    """No message is chosen, or none of the chosen ones is left."""


class Outdated(Refused):
    """The operator saw an earlier state: a token has expired, or a record has changed since."""


class NotAllowed(Refused):
    """A permission is missing, or the project's own rules refuse."""
