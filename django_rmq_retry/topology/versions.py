"""Features by broker version. Old brokers accept unknown arguments silently, so only the version decides."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from django_rmq_retry.topology.declarations import QueueDeclaration


@dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """The broker at the other end, as it reports itself."""

    product: str = ""
    version: tuple[int, ...] = ()
    cluster: str = field(default="", compare=False)

    @classmethod
    def of(cls, properties: Mapping[str, object] | None) -> "Server":
        """Read the server properties of connection.start; the version is its leading numbers."""
        fields = properties or {}
        numbers = re.match(r"\d{1,9}(?:\.\d{1,9})*", _text(fields.get("version")))
        version = tuple(map(int, numbers[0].split("."))) if numbers else ()
        return cls(product=_text(fields.get("product")), version=version, cluster=_text(fields.get("cluster_name")))

    def __str__(self) -> str:
        return f"{self.product} {'.'.join(map(str, self.version))}"

    def at_least(self, version: tuple[int, int]) -> bool:
        """True if the version is at least this one. An unknown product counts as older than every version."""
        return self.product == "RabbitMQ" and self.version >= version


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value if isinstance(value, str) else ""


MOST_TTL = 315_360_000_000
"""Ten years in milliseconds: the longest duration that a broker accepts."""
_LIMIT_FIXED = (4, 0)
_DELAYED_RETRY = (4, 3)
_QUORUM_ONLY = ("x-delivery-limit", "x-dead-letter-strategy", "x-delayed-retry-type")
_CLASSIC_ONLY = ("x-max-priority", "x-queue-mode", "x-queue-version")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    server: Server
    arguments: Mapping[str, object]
    quorum: bool
    classic: bool


def queue_refusal(server: Server, queue: QueueDeclaration) -> str | None:
    """Return the reason why this broker refuses or misreads a queue's arguments, or None."""
    kind = queue.arguments.get("x-queue-type")
    case = _Case(
        server=server,
        arguments=queue.arguments,
        quorum=kind == "quorum",
        # Without a type the broker decides, so no rule for a type applies.
        classic=kind == "classic",
    )
    for rule in (_wrong_type, _delayed_retry, _limit, _timeout, _version, _ttl):
        reason = rule(case)
        if reason:
            return f"{reason} This is {server}."
    return None


def _wrong_type(case: _Case) -> str | None:
    for wrong, names, other in ((case.classic, _QUORUM_ONLY, "quorum"), (case.quorum, _CLASSIC_ONLY, "classic")):
        asked = [name for name in names if name in case.arguments]
        if wrong and asked:
            return f"{asked[0]} is an argument of {other} queues only."
    return None


def _delayed_retry(case: _Case) -> str | None:
    if "x-delayed-retry-type" not in case.arguments or case.server.at_least(_DELAYED_RETRY):
        return None
    return (
        "Native delayed retry (x-delayed-retry-type) needs RabbitMQ 4.3 or newer: older versions accept the argument "
        "silently and never wait. Use via=Ladder()."
    )


def _limit(case: _Case) -> str | None:
    if case.arguments.get("x-delivery-limit") != -1 or case.server.at_least(_LIMIT_FIXED):
        return None
    return "x-delivery-limit=-1 means 0 before RabbitMQ 4: a message is removed at its first return. Write 1000000."


def _timeout(case: _Case) -> str | None:
    if "x-consumer-timeout" not in case.arguments:
        return None
    if case.classic and case.server.at_least(_DELAYED_RETRY):
        return "x-consumer-timeout is refused by classic queues from RabbitMQ 4.3 on. Remove it."
    return None


def _version(case: _Case) -> str | None:
    if case.arguments.get("x-queue-version") == 1 and case.server.at_least(_DELAYED_RETRY):
        return "x-queue-version=1 is refused from RabbitMQ 4.3 on. Remove it."
    return None


def _ttl(case: _Case) -> str | None:
    ttl = case.arguments.get("x-message-ttl")
    if isinstance(ttl, int) and ttl > MOST_TTL:
        return f"x-message-ttl={ttl} is above the {MOST_TTL} ms (ten years) that a broker accepts."
    return None
