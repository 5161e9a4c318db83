"""Checks for ``manage.py check --deploy``: what is fine on a developer's machine and wrong in production."""

import ipaddress
import re
from collections.abc import Iterable, Iterator

from django.conf import settings as project
from django.core.checks import CheckMessage, register
from django.db import connections
from django.views.debug import get_default_exception_reporter_filter

from django_rmq_retry.broker.address import GUEST, Access
from django_rmq_retry.broker.urls import Secret
from django_rmq_retry.checks.saying import TAG, error, warning, with_settings
from django_rmq_retry.conf import Settings

LONG_HEARTBEAT = 60
CHEAP_TO_OPEN = ("django.db.backends.sqlite3", "django.db.backends.dummy")
_LOGIN = re.compile(r"\b(?:amqps?|https?)://[^/\s@]*:[^/\s]+@", re.IGNORECASE)


@register(TAG, deploy=True)
@with_settings
def check_deployment(settings: Settings) -> Iterator[CheckMessage]:
    yield from _shown_settings()
    if project.DEBUG:
        yield warning(
            "W026",
            "DEBUG is on: each worker records every query it makes, which costs time and memory.",
            hint="Set DEBUG = False where consumers run.",
        )
    yield from _connections()
    # A function may ask a vault or a network for the URL; a check does not.
    if not callable(settings.url) and not callable(settings.password):
        yield from _access(settings.address())


def _access(access: Access) -> Iterable[CheckMessage]:
    if access.embedded:
        # Whoever has turned DEBUG off means it: then the deployment is refused.
        say, number = (warning, "W024") if project.DEBUG else (error, "E024")
        yield say(
            number,
            "The broker is embedded://, which is for development and tests: one process, one file, no users.",
            hint="Set RMQ_RETRY['URL'] to a RabbitMQ, as amqps://user:password@host/vhost.",
        )
        return
    remote = [str(host) for host in access.hosts if not _loopback(host.name)]
    if remote and access.tls is None:
        yield warning(
            "W021",
            f"Messages and the password travel unencrypted to {', '.join(remote)} (amqp://).",
            hint="Use amqps://, with RMQ_RETRY['TLS'] = {'CA_FILE': …} for a CA of your own.",
        )
    if access.tls is not None and not access.tls.verify:
        yield warning(
            "W025",
            "RMQ_RETRY['TLS'] has VERIFY False: whoever sits on the way can be the broker.",
            hint="Name your CA with CA_FILE, and the certificate's name with SERVER_NAME where it is not the host's.",
        )
    if access.user == GUEST and (remote or access.password == Secret(GUEST)):
        yield warning(
            "W020",
            "The broker is used as 'guest', whose password everybody knows; by default it may not come from elsewhere.",
            hint="Make a user of its own for this project, with rights to its virtual host only.",
        )
    if access.heartbeat > LONG_HEARTBEAT:
        yield warning(
            "W022",
            f"The heartbeat is {access.heartbeat} s: a broker that is gone is noticed after more than twice that time.",
            hint="Use RMQ_RETRY['HEARTBEAT'] = 15, the default.",
        )


def _connections() -> Iterable[CheckMessage]:
    """How workers reach the databases: a message is what a request is to a server, but there are many more of them."""
    for alias, database in connections.settings.items():
        if database["ENGINE"] in CHEAP_TO_OPEN or database["OPTIONS"].get("pool"):
            continue
        if database["CONN_MAX_AGE"] == 0:
            yield warning(
                "W027",
                f"Each message opens a connection to the database {alias!r} anew: its CONN_MAX_AGE is 0.",
                hint="Where consumers run set CONN_MAX_AGE = 60 and CONN_HEALTH_CHECKS = True, or a pool in OPTIONS.",
            )
        elif not database["CONN_HEALTH_CHECKS"]:
            yield warning(
                "W028",
                f"Connections to the database {alias!r} are kept and not tried before use: after each restart of the "
                "database the first message of every thread fails an attempt.",
                hint="Set CONN_HEALTH_CHECKS = True.",
            )


def _shown_settings() -> Iterable[CheckMessage]:
    """What Django's error pages and mails would show, by the project's own filter."""
    shown = get_default_exception_reporter_filter().get_safe_settings()
    for name, value in shown.items():
        for place in _logins(name, value):
            yield warning(
                "W023",
                f"The setting {place} holds a URL with a password, which Django's error pages and mails show.",
                hint="Wrap it: Secret(url) from django_rmq_retry.env, which rmq_settings() does by itself; or take the "
                "password out of the URL into RMQ_RETRY['PASSWORD'].",
            )


def _logins(place: str, value: object) -> Iterator[str]:
    if isinstance(value, str) and _LOGIN.search(value):
        yield place
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _logins(f"{place}[{key!r}]" if isinstance(key, (str, int)) else place, part)
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield from _logins(f"{place}[{index}]", part)


def _loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")
