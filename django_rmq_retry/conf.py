"""The project's settings: the dict ``RMQ_RETRY``, read once into a frozen value. What is not known is refused."""

import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

from django_rmq_retry import reading
from django_rmq_retry.broker.address import Access, Host, Password, Tls
from django_rmq_retry.broker.urls import Secret
from django_rmq_retry.core.errors import ConfigurationError
from django_rmq_retry.core.policy import Policy, RetryThenPark
from django_rmq_retry.core.topology import Exchange, Queue, QueueType
from django_rmq_retry.embedded import locating

NAME = "RMQ_RETRY"
LOOPBACK = "127.0.0.1"
MASKED = (
    *("card.pan", "*.pan", "*.cvv", "*.cvc", "*.iban", "*.card_number", "*.password", "*.secret", "*.token"),
    *("*.authorization", "*.api_key", "*.pin"),
)
"""What nobody reads by accident: a path's last part is the name of a field, and * stands for any depth."""
REPLY_QUEUES = ("amq.rabbitmq.reply-to.*", "amq.gen-*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``RMQ_RETRY`` with its defaults; each field is the key of the same name in capitals. Times are seconds."""

    url: reading.Urls = (Secret("embedded://"),)
    password: Password | None = None
    """The broker's password by itself, or a function that returns it, asked before each connect."""
    tls: Tls | None = None
    heartbeat: int = 15
    connect_timeout: float = 15
    blocked_timeout: float = 10
    """How long the broker may hold publishers back before the connection is given up."""
    publish_timeout: float = 10
    prefetch: int = 10
    """How many messages of one queue are in hand at once."""
    threads: int = 4
    shutdown_timeout: float = 30
    crash_limit: int | None = 5
    """How often a message may take its worker down before it is parked."""
    policy: Policy = field(default_factory=RetryThenPark)
    queue_type: QueueType = "quorum"
    """The type of queues that a handler gives by name only."""
    reply_to: tuple[str, ...] = REPLY_QUEUES
    """To which queues an answer may be sent, as patterns."""
    topology: tuple[Exchange | Queue, ...] = ()
    """Exchanges and queues that are declared besides those of the handlers."""
    management_url: Secret | None = None
    records: bool = True
    """Whether consumers take parked messages into the database."""
    parked_queues: tuple[str, ...] = ()
    """Parked queues of others, besides those of the handlers."""
    deploy: str | Callable[[], str] = ""
    """The version of the project, noted with every failed attempt."""
    mask: tuple[str, ...] = MASKED
    """What of bodies and headers is hidden from whoever may not see it, as paths."""
    editable: Mapping[str, bool] = field(default_factory=dict)
    """Which types of messages may be edited, by pattern; none by default."""
    cutoff: float | None = None
    """The age above which a message is left out of requeues unless an operator includes it."""
    can: Callable[[object, str, object], bool | str] | None = None
    """The project's own say: (user, verb, message) -> whether, or why not."""
    plain_words: Mapping[str, str] = field(default_factory=dict)
    """What an error means for people who read no code, by its class name."""
    contact: str = ""
    """Whom to ask for a permission."""
    environment: str = ""
    """Shown on every page of the admin, such as PRODUCTION."""
    outbox: bool | tuple[str, ...] = True
    """Whether what is published inside a transaction is a row of it first; or the databases in which it is."""
    inbox_days: int = 120
    """How long it is remembered which messages were handled by handlers that run once for each."""
    held_per_key: int = 1000
    """How many messages may wait behind one that has failed, where order counts."""
    held_in_all: int = 100_000
    attempt_days: int = 30
    resolved_days: int = 90
    audit_days: int = 2557

    def access(self, *, port_of: Callable[[Path], int] = locating.port_of) -> Access:
        """How to get to the broker, for whoever is about to connect; ImproperlyConfigured where that cannot be.

        The embedded broker has another port after each start; `port_of` is asked for the one of its folder.
        """
        found = self.address()
        if not found.embedded:
            return found
        folder = self.folder()
        return replace(found, source=lambda: replace(found, hosts=(Host(LOOPBACK, port_of(folder)),)))

    def folder(self) -> Path:
        """Where the processes of the project find their embedded broker."""
        named = self.address().folder
        return Path(named) if named else locating.folder_of(_project())

    def address(self) -> Access:
        """The broker as it is named in the settings, to be shown or looked at."""
        try:
            return Access.parse(
                self.url,
                password=self.password,
                tls=self.tls,
                heartbeat=self.heartbeat,
                connect_timeout=self.connect_timeout,
                blocked_timeout=self.blocked_timeout,
                publish_timeout=self.publish_timeout,
            )
        except ConfigurationError as error:
            raise ImproperlyConfigured(f"{NAME}: {error}") from error


KEYS: Mapping[str, reading.Reader] = {
    "URL": reading.url,
    "PASSWORD": reading.password,
    "TLS": reading.tls,
    "HEARTBEAT": reading.whole(1, 600),
    "CONNECT_TIMEOUT": reading.seconds,
    "BLOCKED_TIMEOUT": reading.seconds,
    "PUBLISH_TIMEOUT": reading.seconds,
    "PREFETCH": reading.whole(1, 65535),
    "THREADS": reading.whole(1, 1000),
    "SHUTDOWN_TIMEOUT": reading.seconds,
    "CRASH_LIMIT": reading.whole(1, 1000, none="no limit"),
    "POLICY": reading.policy,
    "QUEUE_TYPE": reading.one_of("quorum", "classic"),
    "REPLY_TO": reading.patterns,
    "TOPOLOGY": reading.topology,
    "MANAGEMENT_URL": reading.management,
    "RECORDS": reading.yes_or_no,
    "PARKED_QUEUES": reading.patterns,
    "DEPLOY": reading.text_or_function,
    "MASK": reading.patterns,
    "EDITABLE": reading.switches,
    "CUTOFF": reading.seconds,
    "CAN": reading.function,
    "PLAIN_WORDS": reading.texts,
    "CONTACT": reading.text,
    "ENVIRONMENT": reading.text,
    "OUTBOX": reading.databases,
    "INBOX_DAYS": reading.whole(1, 36500),
    "HELD_PER_KEY": reading.whole(1, 1_000_000),
    "HELD_IN_ALL": reading.whole(1, 100_000_000),
    "ATTEMPT_DAYS": reading.whole(1, 36500),
    "RESOLVED_DAYS": reading.whole(1, 36500),
    "AUDIT_DAYS": reading.whole(1, 36500),
}


@functools.cache
def settings() -> Settings:
    """The project's settings, read once; a change under ``override_settings`` is seen."""
    try:
        return _read()
    except (ImproperlyConfigured, ConfigurationError) as error:
        problem = str(error)
    # Raised here, so that no frame of the traceback holds a setting: error pages show the variables of frames.
    raise ImproperlyConfigured(problem)


def _read() -> Settings:
    given = getattr(project, NAME, {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"{NAME} takes a dict such as {{'URL': …}}, not a {type(given).__name__}.")
    reading.refuse_unknown(NAME, given, KEYS)
    values = {key.lower(): KEYS[key](f"{NAME}[{key!r}]", value) for key, value in given.items()}
    found = Settings(**values)  # type: ignore[arg-type]  # each reader returns what its field takes
    if not callable(found.url) and not callable(found.password):
        found.address()
    return found


def _project() -> str:
    """What all processes of a project have in common: its folder, or its settings module."""
    base = getattr(project, "BASE_DIR", None)
    if base:
        return str(Path(base).resolve())
    module = sys.modules.get(project.SETTINGS_MODULE or "")
    return f"{project.SETTINGS_MODULE} {getattr(module, '__file__', Path.cwd())}"


def _changed(*, setting: str, **_: object) -> None:
    if setting == NAME:
        settings.cache_clear()


setting_changed.connect(_changed, dispatch_uid="django_rmq_retry.conf")
