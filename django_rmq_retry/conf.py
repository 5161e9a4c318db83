"""The settings of ``RMQ_RETRY``, read once into a frozen value. Unknown keys and wrong types are errors."""

import difflib
import functools
import inspect
import logging
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

from django.conf import settings as project
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.utils.module_loading import import_string

from django_rmq_retry.amqp.address import Access, Host, Password, Secret, Tls
from django_rmq_retry.embedded import place
from django_rmq_retry.errors import ConfigurationError
from django_rmq_retry.links import OF_FINDINGS, OF_MESSAGES, TRACE_ID, LinkTemplate, WrongTemplate, is_http
from django_rmq_retry.messages.codecs import SMALL_BYTES, BodyLimits
from django_rmq_retry.messages.texts import short
from django_rmq_retry.policies.policy import Policy, RetryThenPark
from django_rmq_retry.topology.declarations import Exchange, Queue, QueueType

log = logging.getLogger("django_rmq_retry")

Reader = Callable[[str, object], object]
Urls = tuple[Secret, ...] | Callable[[], str | list[str]]

NAME = "RMQ_RETRY"
LOOPBACK = "127.0.0.1"
MASKED = (
    *("*.pan", "*.card_number", "*.card_no", "*.credit_card", "*.credit_card_number", "*.cc", "*.cc_number"),
    *("*.cvv", "*.cvv2", "*.cvc", "*.cvc2", "*.cvn", "*.security_code", "*.pin", "*.iban", "*.account_number"),
    *("*.password", "*.passwd", "*.secret", "*.client_secret", "*.token", "*.access_token", "*.refresh_token"),
    *("*.authorization", "*.api_key", "*.x_api_key", "*.ssn"),
)
"""Fields masked by default: the last part of a path is a field's name, and * stands for any depth."""
MOST_ASYNC_HANDLERS = 1000
"""The most messages that may be handled at once: each has a thread that waits, and some have a database connection."""
SHORTEST_KEY = 16
"""The fewest characters of the key that signs a webhook."""
ADMINS = "admins"
"""The value of ALERTS['MAIL'] that stands for the setting ADMINS of Django."""
REPLY_QUEUES = ("amq.rabbitmq.reply-to.*", "amq.gen-*")


def wrong(key: str, expected: str, came: str, advice: str = "") -> ImproperlyConfigured:
    return ImproperlyConfigured(f"{key} takes {expected}, not {came}.{advice and ' '}{advice}")


def refuse_unknown(where: str, given: Iterable[object], known: Iterable[str]) -> None:
    """Raise for an unknown key; the message names the key, never its value."""
    names = sorted(known)
    for key in given:
        if key in names:
            continue
        near = difflib.get_close_matches(str(key).upper(), names, n=1, cutoff=0.5)
        imported = f"Did you mean {near[0]!r}?" if near else f"Valid keys: {', '.join(names)}."
        raise ImproperlyConfigured(f"{where} has no key {key!r}. {imported}")


def taking(
    expected: str, fits: Callable[[Any], object], convert: Callable[[Any], object] = lambda value: value
) -> Reader:
    """Read a value that fits; ``expected`` describes such values."""

    def read(key: str, value: object) -> object:
        if fits(value):
            return convert(value)
        raise wrong(key, expected, repr(value))

    return read


def importing(expected: str, fits: Callable[[object], bool]) -> Reader:
    """Read an object, or the dotted path to one."""

    def read(key: str, value: object) -> object:
        imported = _imported(key, value) if isinstance(value, str) else value
        if fits(imported):
            return imported
        raise wrong(key, f"{expected}, or the dotted path to one", repr(value))

    return read


def _is_list_of_texts(value: object) -> bool:
    return isinstance(value, (list, tuple)) and all(isinstance(one, str) and one for one in value)


def _is_table_of(value: object, kind: type) -> bool:
    return isinstance(value, Mapping) and all(isinstance(k, str) and isinstance(v, kind) for k, v in value.items())


def _makes_contexts(value: object) -> bool:
    """True unless it surely returns no async context manager, as without its decorator or with @contextmanager."""
    if isinstance(value, type):
        return issubclass(value, AbstractAsyncContextManager)
    bare = inspect.isasyncgenfunction(value) or inspect.iscoroutinefunction(value)
    return callable(value) and not bare and not inspect.isgeneratorfunction(inspect.unwrap(value))


text = taking("a string that is not empty", lambda value: isinstance(value, str) and value)
path = taking(
    "the path of a file",
    lambda value: value is None or hasattr(value, "__fspath__") or (isinstance(value, str) and value),
    lambda value: None if value is None else str(value),
)
yes_or_no = taking("True or False", lambda value: isinstance(value, bool))
seconds = taking("seconds above 0, as a number", lambda value: type(value) in (int, float) and 0 < value < float("inf"))
text_or_function = taking(
    "a string or a function that returns one", lambda value: callable(value) or isinstance(value, str)
)
function = importing("a function", lambda value: value is None or callable(value))
lifespan = importing(
    "a function decorated with @asynccontextmanager", lambda value: value is None or _makes_contexts(value)
)
policy = importing("a policy, such as RetryThenPark()", lambda value: isinstance(value, Policy))
patterns = taking("a list of queue names, in which * matches anything", _is_list_of_texts, tuple)
databases = taking(
    "True, False, or a list of names from DATABASES",
    lambda value: isinstance(value, bool) or (value and _is_list_of_texts(value)),
    lambda value: value if isinstance(value, bool) else tuple(value),
)
switches = taking("a dict such as {'payment.*': True}", lambda value: _is_table_of(value, bool), dict)
texts = taking("a dict such as {'BankDown': 'The bank did not answer.'}", lambda value: _is_table_of(value, str), dict)


def link(*places: str, required: str = "") -> Reader:
    """Read the address of a link, which may have these ``places``."""

    def read(key: str, value: object) -> LinkTemplate:
        if not isinstance(value, str):
            raise wrong(key, "an http:// or https:// URL", repr(value))
        try:
            known = LinkTemplate.parse(value, places)
        except WrongTemplate as error:
            raise ImproperlyConfigured(f"{key} takes {error}") from error
        if required and f"{{{required}}}" not in known.text:
            raise wrong(key, f"a URL with the place {{{required}}}", repr(value))
        return known

    return read


def management(key: str, value: object) -> Secret | None:
    given = Secret(value) if isinstance(value, str) else value
    if given is None or (isinstance(given, Secret) and is_http(given.reveal())):
        return given
    raise wrong(key, "an http:// or https:// URL", f"a {type(value).__name__} without it", "It is not shown here.")


def webhook(key: str, value: object) -> Secret | None:
    given = management(key, value)
    if given is None or re.fullmatch(r"[!-~]+", given.reveal()):
        return given
    raise wrong(key, "a URL of ASCII characters without spaces", "this one", "It is not shown here.")


def signing_key(key: str, value: object) -> Secret | None:
    given = Secret(value) if isinstance(value, str) else value
    if given is None or (isinstance(given, Secret) and len(given.reveal()) >= SHORTEST_KEY):
        return given
    expected = f"a string of at least {SHORTEST_KEY} characters"
    raise wrong(key, expected, f"this {type(value).__name__}", "Its value is not shown here.")


def nested(example: str, parts: Mapping[str, Reader], kind: Callable[..., object]) -> Reader:
    """Read a dict whose keys have readers of their own."""

    def read(key: str, value: object) -> object:
        if not isinstance(value, dict):
            raise wrong(key, f"a dict such as {example}", repr(value))
        refuse_unknown(key, value, parts)
        return kind(**{name.lower(): parts[name](f"{key}[{name!r}]", part) for name, part in value.items()})

    return read


def url(key: str, value: object) -> Urls:
    expected = "an AMQP URL, a list of them, or a function that returns one"
    if callable(value):
        return value
    given = list(value) if isinstance(value, (list, tuple)) else [value]
    if not given or not all(isinstance(one, (str, Secret)) for one in given):
        raise wrong(key, expected, f"a {type(value).__name__}", "Its value is not shown here.")
    return tuple(one if isinstance(one, Secret) else Secret(str(one)) for one in given)


def password(key: str, value: object) -> Password | None:
    if value is None or isinstance(value, Secret) or callable(value):
        return value
    if isinstance(value, str):
        return Secret(value)
    expected = "a string or a function that returns one"
    raise wrong(key, expected, f"a {type(value).__name__}", "Its value is not shown here.")


def whole(low: int, high: int, *, none: str = "") -> Reader:
    """Read a whole number; ``none`` is the meaning of None, if None is allowed."""

    def read(key: str, value: object) -> int | None:
        if (value is None and none) or (type(value) is int and low <= value <= high):
            return value
        raise wrong(key, f"a whole number from {low} to {high}{none and f', or None for {none}'}", repr(value))

    return read


def one_of(*known: str) -> Reader:
    def read(key: str, value: object) -> str:
        if isinstance(value, str) and value in known:
            return value
        near = difflib.get_close_matches(str(value), known, n=1)
        raise wrong(key, " or ".join(map(repr, known)), repr(value), f"Did you mean {near[0]!r}?" if near else "")

    return read


def listing(expected: str, fits: Callable[[object], bool]) -> Reader:
    """Read a list of objects and of dotted paths; a path may lead to a list of objects, too."""

    def read(key: str, value: object) -> tuple[object, ...]:
        if not isinstance(value, (list, tuple)):
            raise wrong(key, expected, repr(value))
        objects: list[object] = []
        for part in value:
            imported = _imported(key, part) if isinstance(part, str) else part
            members = imported if isinstance(imported, (list, tuple)) else [imported]
            if not all(map(fits, members)):
                raise wrong(key, expected, repr(part))
            objects += members
        return tuple(objects)

    return read


hooks = listing("a list of functions that return context managers, or of dotted paths to them", callable)
topology = listing(
    "a list of Exchange and Queue objects, or of dotted paths to them",
    lambda value: isinstance(value, (Exchange, Queue)),
)


def _imported(key: str, dotted: str) -> object:
    try:
        return import_string(dotted)
    except ImportError as error:
        raise ImproperlyConfigured(f"{key} names {dotted!r}, which cannot be imported: {error}.") from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Operators:
    """``RMQ_RETRY["OPERATORS"]`` with its defaults: settings of the admin and of the operators' commands."""

    mask: tuple[str, ...] = MASKED
    """Paths of fields in bodies and headers that are hidden without the permission to see them."""
    editable: Mapping[str, bool] = field(default_factory=dict)
    """Types of messages that may be edited, by pattern; none by default."""
    requeue_max_age: float | None = None
    """The age above which a message is left out of requeues unless an operator includes it."""
    permit: Callable[[object, str, object], bool | str] | None = None
    """The project's rule for single messages: (user, verb, message) -> True, False or the reason for a refusal."""
    error_labels: Mapping[str, str] = field(default_factory=dict)
    """Explanations of errors for people who read no code, by class name."""
    contact: str = ""
    """Named to operators who lack a permission."""
    environment: str = ""
    """Shown on every page of the admin, such as PRODUCTION."""
    management_url: Secret | None = None
    attempt_days: int = 30
    resolved_days: int = 90
    audit_days: int = 2557


@dataclass(frozen=True, slots=True, kw_only=True)
class Alerts:
    """``RMQ_RETRY["ALERTS"]`` with its defaults."""

    mail: str | tuple[str, ...] = ()
    """The recipients, or ADMINS."""
    webhook: Secret | None = None
    secret: Secret | None = None
    """The key that signs what the webhook gets."""
    window: float = 900
    """Seconds; at most one alert of one finding is sent in them."""
    level: str = "warning"
    """The lowest severity of a finding that is sent."""
    without: tuple[str, ...] = ()
    """Codes of findings that are not sent."""
    admin_url: str = ""
    """The address of the project's admin, for the link to Live status."""
    runbook: LinkTemplate | None = None
    """The address of what to do about a finding; the default is a page of this package's documentation."""

    def __bool__(self) -> bool:
        return bool(self.mail or self.webhook)


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """``RMQ_RETRY["LINKS"]``: the addresses of links on the pages of messages and error groups."""

    logs: LinkTemplate | None = None
    ticket: LinkTemplate | None = None
    customer: LinkTemplate | None = None
    runbook: LinkTemplate | None = None
    trace: LinkTemplate | None = None
    """The address of one trace, beside each attempt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FourEyes:
    """``RMQ_RETRY["FOUR_EYES"]`` with its defaults: the acts that a second person has to approve."""

    edit: int | None = None
    """The number of messages from which on an edit needs a second person; None if it never does."""
    discard: int | None = None
    requeue: int | None = None
    close_breaker: bool = False
    require_account: bool = False
    """True if a command that asks must name the account of whoever uses it."""
    expire_after: int = 24 * 3600
    """Seconds for which a request can be approved."""

    def __bool__(self) -> bool:
        return bool(self.edit or self.discard or self.requeue or self.close_breaker)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``RMQ_RETRY`` with its defaults; each field is the key of the same name in capitals. Times are seconds."""

    url: Urls = (Secret("embedded://"),)
    password: Password | None = None
    """The broker's password, or a function that returns it, called before each connect."""
    tls: Tls | None = None
    heartbeat: int = 15
    connect_timeout: float = 15
    blocked_timeout: float = 10
    """The longest time for which the broker may block publishers before the connection is closed."""
    publish_timeout: float = 10
    prefetch: int = 10
    """The most unacked messages of one queue."""
    threads: int = 4
    async_handlers: int = 100
    """The most messages that async handlers of one process handle at once."""
    lifespan: Callable[[], AbstractAsyncContextManager[object]] | None = None
    """Entered in the event loop of each process with async handlers, before their first message."""
    shutdown_timeout: float = 30
    crash_limit: int | None = 5
    """The number of workers that a message may kill before it is parked."""
    body_bytes: int = 16 * 1024 * 1024
    """The largest body that is decoded; a larger one is parked."""
    body_elements: int = 500_000
    """The most objects, lists, keys and values of a JSON body that is decoded."""
    policy: Policy = field(default_factory=RetryThenPark)
    queue_type: QueueType = "quorum"
    """The type of queues that a handler names by a string."""
    reply_to: tuple[str, ...] = REPLY_QUEUES
    """The queues to which answers may be sent, as patterns."""
    topology: tuple[Exchange | Queue, ...] = ()
    """Exchanges and queues to declare in addition to those of the handlers."""
    records: bool = True
    """True if consumers store parked messages in the database."""
    parked_queues: tuple[str, ...] = ()
    """Parked queues of other programs, in addition to those of the handlers."""
    version: str | Callable[[], str] = ""
    """The version of the project, recorded with every failed attempt."""
    outbox: bool | tuple[str, ...] = True
    """True if messages published inside a transaction are stored in it first; or the databases where they are."""
    inbox_days: int = 120
    """The days for which handlers with ``once`` remember their messages."""
    blocked_per_key: int = 1000
    """The most messages that may wait behind a failed one of their ordering key."""
    blocked_total: int = 100_000
    around: tuple[Callable[..., object], ...] = ()
    """Hooks around each attempt and each publish: functions that return a context manager."""
    operators: Operators = field(default_factory=Operators)
    alerts: Alerts = field(default_factory=Alerts)
    links: Links = field(default_factory=Links)
    four_eyes: FourEyes = field(default_factory=FourEyes)

    @property
    def limits(self) -> BodyLimits:
        return BodyLimits(most_bytes=self.body_bytes, most_elements=self.body_elements)

    def access(self, *, port_of: Callable[[Path], int] = place.port_of) -> Access:
        """Return the broker's access for a connection, or raise ImproperlyConfigured.

        The embedded broker has another port after each start; `port_of` returns the current one of its folder.
        """
        address = self.address()
        if not address.embedded:
            return address
        folder = self.folder()
        return replace(address, source=lambda: replace(address, hosts=(Host(LOOPBACK, port_of(folder)),)))

    def folder(self) -> Path:
        """The folder where the project's processes find their embedded broker."""
        named = self.address().folder
        return Path(named) if named else place.folder_of(_project())

    def address(self) -> Access:
        """The broker as the settings name it, for display."""
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


OPERATOR_KEYS: Mapping[str, Reader] = {
    "MASK": patterns,
    "EDITABLE": switches,
    "REQUEUE_MAX_AGE": seconds,
    "PERMIT": function,
    "ERROR_LABELS": texts,
    "CONTACT": text,
    "ENVIRONMENT": text,
    "MANAGEMENT_URL": management,
    "ATTEMPT_DAYS": whole(1, 36500),
    "RESOLVED_DAYS": whole(1, 36500),
    "AUDIT_DAYS": whole(1, 36500),
}
"""The keys of ``RMQ_RETRY["OPERATORS"]``."""

ALERT_KEYS: Mapping[str, Reader] = {
    "MAIL": taking(
        f"{ADMINS!r} or a list of addresses",
        lambda value: value == ADMINS or (value and _is_list_of_texts(value) and all("@" in one for one in value)),
        lambda value: value if value == ADMINS else tuple(value),
    ),
    "WEBHOOK": webhook,
    "SECRET": signing_key,
    "WINDOW": seconds,
    "LEVEL": one_of("warning", "error"),
    "WITHOUT": taking("a list of codes such as ['PAUSED']", _is_list_of_texts, tuple),
    "ADMIN_URL": taking(
        "an http:// or https:// URL such as 'https://bank.example/admin/'",
        lambda value: isinstance(value, str) and is_http(value),
    ),
    "RUNBOOK": link(*OF_FINDINGS),
}
"""The keys of ``RMQ_RETRY["ALERTS"]``."""


LINK_KEYS: Mapping[str, Reader] = {
    **{name: link(*OF_MESSAGES) for name in ("LOGS", "TICKET", "CUSTOMER", "RUNBOOK")},
    "TRACE": link(TRACE_ID, required=TRACE_ID),
}
"""The keys of ``RMQ_RETRY["LINKS"]``."""


def alerts(key: str, value: object) -> Alerts:
    read: Any = nested("{'MAIL': ['ops@bank.example']}", ALERT_KEYS, Alerts)(key, value)
    if value and not read:
        raise wrong(key, "'MAIL', 'WEBHOOK' or both", "a dict without a recipient")
    if read.webhook and not read.secret:
        raise wrong(key, "a 'SECRET' with its 'WEBHOOK'", "a webhook that nobody could verify")
    return cast(Alerts, read)


MOST_MESSAGES = 1_000_000_000

FOUR_EYES_KEYS: Mapping[str, Reader] = {
    "EDIT": whole(1, MOST_MESSAGES, none="never"),
    "DISCARD": whole(1, MOST_MESSAGES, none="never"),
    "REQUEUE": whole(1, MOST_MESSAGES, none="never"),
    "CLOSE_BREAKER": yes_or_no,
    "REQUIRE_ACCOUNT": yes_or_no,
    "EXPIRE_AFTER": whole(60, 31 * 24 * 3600),
}
"""The keys of ``RMQ_RETRY["FOUR_EYES"]``."""


def four_eyes(key: str, value: object) -> FourEyes:
    read: Any = nested("{'DISCARD': 10}", FOUR_EYES_KEYS, FourEyes)(key, value)
    if value and not read:
        raise wrong(key, "'EDIT', 'DISCARD', 'REQUEUE' or 'CLOSE_BREAKER'", "a dict without an act")
    return cast(FourEyes, read)


TLS_KEYS: Mapping[str, Reader] = {
    "CA_FILE": path,
    "CERT_FILE": path,
    "KEY_FILE": path,
    "VERIFY": yes_or_no,
    "SERVER_NAME": text,
}
"""The keys of ``RMQ_RETRY["TLS"]``."""


def tls(key: str, value: object) -> Tls | None:
    if value is None or isinstance(value, Tls):
        return value
    return nested("{'CA_FILE': '/etc/ssl/ours.pem'}", TLS_KEYS, Tls)(key, value)  # type: ignore[return-value]  # a Tls


KEYS: Mapping[str, Reader] = {
    "URL": url,
    "PASSWORD": password,
    "TLS": tls,
    "HEARTBEAT": whole(1, 600),
    "CONNECT_TIMEOUT": seconds,
    "BLOCKED_TIMEOUT": seconds,
    "PUBLISH_TIMEOUT": seconds,
    "PREFETCH": whole(1, 65535),
    "THREADS": whole(1, 1000),
    "ASYNC_HANDLERS": whole(1, MOST_ASYNC_HANDLERS),
    "LIFESPAN": lifespan,
    "SHUTDOWN_TIMEOUT": seconds,
    "CRASH_LIMIT": whole(1, 1000, none="no limit"),
    "BODY_BYTES": whole(SMALL_BYTES, 2**31),
    "BODY_ELEMENTS": whole(SMALL_BYTES, 2**31),
    "POLICY": policy,
    "QUEUE_TYPE": one_of("quorum", "classic"),
    "REPLY_TO": patterns,
    "TOPOLOGY": topology,
    "RECORDS": yes_or_no,
    "PARKED_QUEUES": patterns,
    "VERSION": text_or_function,
    "OUTBOX": databases,
    "INBOX_DAYS": whole(1, 36500),
    "BLOCKED_PER_KEY": whole(1, 1_000_000),
    "BLOCKED_TOTAL": whole(1, 100_000_000),
    "AROUND": hooks,
    "OPERATORS": nested("{'CONTACT': 'payments-oncall'}", OPERATOR_KEYS, Operators),
    "ALERTS": alerts,
    "LINKS": nested("{'LOGS': 'https://logs.bank/?id={message_id}'}", LINK_KEYS, Links),
    "FOUR_EYES": four_eyes,
}


@functools.cache
def settings() -> Settings:
    """Return the project's settings, read once; ``override_settings`` reloads them."""
    try:
        return _read()
    except (ImproperlyConfigured, ConfigurationError) as error:
        problem = str(error)
    # Raised here so that no frame of the traceback holds a setting: error pages show the variables of frames.
    raise ImproperlyConfigured(problem)


def project_version() -> str:
    """Return the version of the project; empty if none is set or its function raises."""
    setting = settings().version
    try:
        return short(setting() if callable(setting) else setting, 100)
    except Exception:
        log.exception("The function in RMQ_RETRY['VERSION'] raised an error. Attempts are recorded without a version.")
        return ""


def _read() -> Settings:
    given = getattr(project, NAME, {})
    if not isinstance(given, dict):
        raise ImproperlyConfigured(f"{NAME} takes a dict such as {{'URL': …}}, not a {type(given).__name__}.")
    for key in given.keys() & OPERATOR_KEYS.keys():
        raise ImproperlyConfigured(f"{NAME}[{key!r}] belongs under {NAME}['OPERATORS'].")
    refuse_unknown(NAME, given, KEYS)
    values = {key.lower(): KEYS[key](f"{NAME}[{key!r}]", value) for key, value in given.items()}
    known = Settings(**values)  # type: ignore[arg-type]  # each reader returns what its field takes
    if not callable(known.url) and not callable(known.password):
        known.address()
    return known


def _project() -> str:
    """Return a name that all processes of a project share: its folder, or its settings module."""
    base = getattr(project, "BASE_DIR", None)
    if base:
        return str(Path(base).resolve())
    module = sys.modules.get(project.SETTINGS_MODULE or "")
    return f"{project.SETTINGS_MODULE} {getattr(module, '__file__', Path.cwd())}"


def _changed(*, setting: str, **_: object) -> None:
    if setting == NAME:
        settings.cache_clear()


setting_changed.connect(_changed, dispatch_uid="django_rmq_retry.conf")
