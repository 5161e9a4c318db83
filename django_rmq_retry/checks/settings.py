"""Checks of settings, handlers and the outbox."""

import ipaddress
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from django.apps import apps
from django.conf import settings as project
from django.core.checks import (
    CheckMessage,  # Django's own name
    Error,  # Django's own name
    Warning,  # noqa: A004  # Django's own name
    register,
)
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections, router
from django.views.debug import get_default_exception_reporter_filter

from django_rmq_retry import conf
from django_rmq_retry.amqp.address import GUEST, Access, Secret
from django_rmq_retry.conf import Settings
from django_rmq_retry.errors import ConfigurationError, TopologyConflict
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.subscription import Intake, Subscription
from django_rmq_retry.policies.carriers import AckFirst, InPlace, Republish, Requeue, WaitQueue
from django_rmq_retry.policies.policy import RetryThenPark
from django_rmq_retry.topology.queues import name_of

TAG = "rmq_retry"
Check = Callable[..., list[CheckMessage]]


def error(number: str, text: str, *, hint: str, at: str | None = None) -> CheckMessage:
    return Error(text, hint=hint, obj=at, id=f"{TAG}.{number}")


def warning(number: str, text: str, *, hint: str, at: str | None = None) -> CheckMessage:
    return Warning(text, hint=hint, obj=at, id=f"{TAG}.{number}")


def with_settings(check: Callable[[Settings], Iterable[CheckMessage]]) -> Check:
    """A check that has nothing to say while the settings or the handlers are broken: another check says that."""

    def run(*, app_configs: Sequence[object] | None, **_: object) -> list[CheckMessage]:  # noqa: ARG001  # Django's call
        try:
            return list(check(conf.settings()))
        except (ImproperlyConfigured, ConfigurationError):
            return []

    return run


def joined() -> list[str]:
    """The names of the handlers that can be joined with their queues."""
    return [name for name in registry.registrations() if not problem(name)]


def problem(name: str) -> str:
    """Why a handler cannot be joined with its queue and policy; empty where it can."""
    try:
        registry.subscription(name)
    except ConfigurationError as wrong:
        return str(wrong)
    return ""


CONSUMER_TIMEOUT = 1800
"""Seconds, by RabbitMQ's default, after which the broker takes back what a consumer has not settled."""
LONG = 60
"""Seconds of waiting in hand that are worth a word."""


@register(TAG)
def check_settings(*, app_configs: Sequence[object] | None, **_: object) -> list[CheckMessage]:  # noqa: ARG001
    try:
        settings = conf.settings()
    except ImproperlyConfigured as wrong:
        return [error("E001", str(wrong), hint="Correct RMQ_RETRY in the settings file.")]
    return [
        warning(
            "W011",
            f"RMQ_RETRY['REPLY_TO'] contains {pattern!r}: whoever may publish can have answers sent to any queue.",
            hint="Name the queues of the callers, as ['amq.rabbitmq.reply-to.*', 'bank.answers.*'].",
        )
        for pattern in settings.reply_to
        if not pattern.strip("*?")
    ]


@register(TAG)
@with_settings
def check_joining(settings: Settings) -> Iterator[CheckMessage]:
    """Each handler by itself, then those of one queue, then all together."""
    wrong = [(name, said) for name in registry.registrations() if (said := problem(name))]
    for name, said in wrong:
        yield error("E002", said, hint="Correct the arguments of @handler, or RMQ_RETRY['POLICY'].", at=name)
    if wrong:
        return
    try:
        intakes = registry.intakes()
    except ConfigurationError as disagreement:
        yield error("E003", str(disagreement), hint="What belongs to a queue is the same for all its handlers.")
        return
    try:
        registry.topology()
    except TopologyConflict as conflict:
        yield error("E004", str(conflict), hint="Handlers and RMQ_RETRY['TOPOLOGY'] describe one topology.")
    except ConfigurationError as disagreement:
        yield error("E003", str(disagreement), hint="What belongs to a queue is the same for all its handlers.")
    yield from _idle(settings, intakes)


@register(TAG)
@with_settings
def check_policies(settings: Settings) -> Iterator[CheckMessage]:  # noqa: ARG001
    subscriptions = [registry.subscription(name) for name in joined()]
    yield from _wait_in_one_line(subscriptions)
    for subscription in subscriptions:
        for check in (_outlasts, _forgets, _acks_first, _waits_in_line, _goes_round, _holds_too_long, _loses_order):
            yield from check(subscription)


def _idle(settings: Settings, intakes: Sequence[Intake]) -> Iterable[CheckMessage]:
    in_hand = sum(1 if intake.ordered else settings.prefetch for intake in intakes)
    said = "THREADS" in getattr(project, conf.NAME, {})
    if said and intakes and settings.threads > in_hand:
        yield warning(
            "W012",
            f"RMQ_RETRY['THREADS'] is {settings.threads}, but at most {in_hand} messages of all queues are in hand at "
            "once: some threads never work.",
            hint="Raise RMQ_RETRY['PREFETCH'], or lower THREADS.",
        )


def _acks_first(subscription: Subscription) -> Iterable[CheckMessage]:
    if isinstance(subscription.policy.via, AckFirst):
        yield warning(
            "W001",
            "AckFirst acknowledges a message before its copy is stored: what dies between the two is lost.",
            hint="Use via=Republish(), which may double and never loses, or the default, via=Ladder().",
            at=subscription.name,
        )


def _outlasts(subscription: Subscription) -> Iterable[CheckMessage]:
    if subscription.timeout is not None and subscription.timeout >= CONSUMER_TIMEOUT:
        yield warning(
            "W017",
            f"Its timeout of {subscription.timeout:g} s is not below RabbitMQ's consumer_timeout, by default "
            f"{CONSUMER_TIMEOUT} s: the broker delivers the message again before the deadline ends the first attempt.",
            hint="Lower timeout=…, or raise consumer_timeout on the broker and silence this check.",
            at=subscription.name,
        )


def _forgets(subscription: Subscription) -> Iterable[CheckMessage]:
    if subscription.ack == "auto":
        yield warning(
            "W019",
            "With ack='auto' the broker forgets a message as it sends it: what fails, what waits here when the process "
            "ends, and what a lost connection was carrying is lost.",
            hint="Where that is meant, silence this check. Else leave ack out.",
            at=subscription.name,
        )


def _waits_in_line(subscription: Subscription) -> Iterable[CheckMessage]:
    mixed = len(_waits(subscription)) > 1 or any(backoff.spread for backoff in subscription.policy.backoffs)
    if mixed and isinstance(subscription.policy.via, WaitQueue):
        yield warning(
            "W004",
            "WaitQueue holds waits of different lengths in one queue: a long one keeps shorter ones behind it waiting.",
            hint="Use via=Ladder(), which has a queue for each wait, or one fixed wait without jitter.",
            at=subscription.name,
        )


def _wait_in_one_line(subscriptions: Sequence[Subscription]) -> Iterable[CheckMessage]:
    """Handlers that each have one wait, but not the same, in the same queue."""
    lines: dict[str, dict[str, float]] = {}
    for subscription in subscriptions:
        via, waits = subscription.policy.via, _waits(subscription)
        if isinstance(via, WaitQueue) and len(waits) == 1:
            lines.setdefault(name_of(via.queue), {})[subscription.name] = waits.pop()
    for queue, line in lines.items():
        if len(set(line.values())) > 1:
            said = ", ".join(f"{name} {wait:g} s" for name, wait in line.items())
            yield warning(
                "W004",
                f"WaitQueue holds waits of different lengths in one queue, {queue!r} ({said}): a long one keeps "
                "shorter ones behind it waiting.",
                hint="Give each handler a wait queue of its own or the same wait, or use via=Ladder().",
                at=next(iter(line)),
            )


def _waits(subscription: Subscription) -> set[float]:
    return {step for backoff, attempts in subscription.policy.waits for step in backoff.steps(attempts)}


def _goes_round(subscription: Subscription) -> Iterable[CheckMessage]:
    if isinstance(subscription.policy.via, Requeue) and subscription.policy.attempts is None:
        yield warning(
            "W005",
            "Requeue with attempts=None never gives up: a message that always fails comes back for ever.",
            hint="Use attempts=2, or via=Ladder() to count further.",
            at=subscription.name,
        )


def _holds_too_long(subscription: Subscription) -> Iterable[CheckMessage]:
    held = isinstance(subscription.policy.via, (AckFirst, Republish, Requeue))
    in_place = isinstance(subscription.policy, RetryThenPark) and isinstance(subscription.policy.via, InPlace)
    if not held and not (in_place and subscription.queue.lasting):
        return
    longest = subscription.policy.via.longest(subscription.route)
    if longest >= LONG:
        yield warning(
            "W008",
            f"{type(subscription.policy.via).__name__} waits up to {longest:.9g} s with the message in hand, which "
            "takes one place of the prefetch for so long.",
            hint="Give the back-off a lower cap, or use via=Ladder(), which waits in the broker.",
            at=subscription.name,
        )


def _loses_order(subscription: Subscription) -> Iterable[CheckMessage]:
    queue = subscription.queue
    if not subscription.policy.ordered and subscription.order_by is None:
        return
    by = "StopTheLine" if subscription.policy.ordered else "order_by"
    if queue.max_priority is not None or "x-max-priority" in queue.arguments:
        yield warning(
            "W013",
            f"Queue {queue.name!r} has priorities, so messages overtake each other in spite of {by}.",
            hint="Leave max_priority out.",
            at=subscription.name,
        )
    if queue.existing:
        yield warning(
            "W014",
            f"Queue {queue.name!r} is declared elsewhere. {by} keeps the order only if it was declared with "
            "x-single-active-consumer.",
            hint="Make sure of it with `manage.py rmq_declare --check`, then silence this check.",
            at=subscription.name,
        )


@register(TAG)
@with_settings
def check_outbox(settings: Settings) -> Iterator[CheckMessage]:
    named = settings.outbox
    if named is False:
        return
    aliases = [DEFAULT_DB_ALIAS] if named is True else list(named)
    for alias in aliases:
        if alias not in connections:
            yield error(
                "E040",
                f"RMQ_RETRY['OUTBOX'] names the database {alias!r}, and DATABASES has none of that name.",
                hint=f"Known: {', '.join(connections)}.",
            )
        elif not router.allow_migrate_model(alias, apps.get_model("rmq_retry", "OutboxMessage")):
            yield warning(
                "W040",
                f"The database {alias!r} has no outbox, for a router keeps its table away: what is published inside "
                "its transactions leaves on commit, and is lost when the process ends just then.",
                hint="Let allow_migrate() return True for the app label 'rmq_retry' there, or set 'OUTBOX' to what is "
                "meant.",
            )


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
