"""The method basic.publish: what a message says of itself, where it goes, and what its publisher is told."""

from django_rmq_retry.core.errors import UndecodableHeaders
from django_rmq_retry.core.headers import Headers
from django_rmq_retry.embedded.engine.declaring import REPLY_TO, Declaring
from django_rmq_retry.embedded.engine.events import Deliver, Nack, Return
from django_rmq_retry.embedded.engine.exchanges import Exchange
from django_rmq_retry.embedded.engine.host import Host, Outbox
from django_rmq_retry.embedded.engine.messages import (
    PERSISTENT,
    Glance,
    Message,
    checked_headers,
    decoded,
    glance,
    with_table,
)
from django_rmq_retry.embedded.engine.refusals import Refused, method
from django_rmq_retry.embedded.engine.replying import is_reply_name, with_reply_to
from django_rmq_retry.embedded.engine.terms import milliseconds, type_name

_NO_PROPERTIES = b"\0\0"


class Publishing(Declaring):
    """The part of a channel that publishes, and that requests by direct reply-to."""

    def __init__(self, host: Host, outbox: Outbox, number: int, *, user: str) -> None:
        super().__init__(host, outbox)
        self.number = number
        self.user = user
        self.confirming = False
        self.published = 0
        self.reply_name = ""
        """What stands in reply_to of the requests of this channel; empty while it has no consumer for the answers."""
        self.reply_tag = ""
        self.last_tag = 0

    @method(85, 10)
    def confirm_select(self) -> None:
        self.confirming = True

    @method(90, 10)
    def tx_select(self) -> None:
        if self.confirming:
            raise Refused(406, "cannot switch from confirm to tx mode")
        raise Refused(540, "the embedded broker has no transactions; use publisher confirms")

    @method(90, 20)
    def tx_commit(self) -> None:
        raise Refused(406, "channel is not transactional")

    @method(90, 30)
    def tx_rollback(self) -> None:
        raise Refused(406, "channel is not transactional")

    @method(60, 40)
    def publish(
        self, exchange: str, key: str, raw: bytes, body: bytes, *, mandatory: bool = False, immediate: bool = False
    ) -> None:
        """Publish; returns, confirms and deliveries go to the outboxes they belong to."""
        host = self.host
        if immediate:
            raise Refused(540, "immediate=true")
        if len(body) > host.behaviour.max_message:
            most = host.behaviour.max_message
            raise Refused(406, f"message size {len(body)} is larger than configured max size {most}")
        source = host.exchange(exchange)
        if source.internal:
            raise Refused(403, f"cannot publish to internal exchange '{exchange}' in vhost '{host.name}'")
        message = Message(source.name, key, raw, body)
        if raw != _NO_PROPERTIES:
            self._read(message, glance(raw))
        taken = self._spread(source, message, mandatory=mandatory)
        if self.confirming:
            self.published += 1
            if taken:
                self.outbox.confirm(self.number, self.published)
            else:
                self.outbox.tell(Nack(self.number, self.published))
        if host.around.graves:
            host.settle()

    def _spread(self, source: Exchange, message: Message, *, mandatory: bool) -> bool:
        """Hand the message to every queue; False: one of them is full."""
        host = self.host
        queues = host.router.route(source, message)
        if not queues:
            self._spread_nowhere(source, message, mandatory=mandatory)
            return True
        taken = True
        for queue in queues:
            if not queue.offer(message):
                host.around.lost["refused"] += 1
                taken = False
        return taken

    def _spread_nowhere(self, source: Exchange, message: Message, *, mandatory: bool) -> None:
        host = self.host
        replies = source is host.router.default and is_reply_name(message.key)
        answered = host.repliers.get(message.key) if replies else None
        if answered is not None:
            answered(message)
        else:
            host.around.lost["unroutable"] += 1
        if mandatory and (not replies or host.behaviour.replies_return):
            self.outbox.tell(Return(self.number, message))

    def _read(self, message: Message, seen: Glance) -> None:
        if seen.names_user:
            named = decoded(message.raw).user_id
            if named != self.user:
                why = f"user_id property set to '{named}' but authenticated user was '{self.user}'"
                raise Refused(406, why)
        if seen.expiration is not None:
            message.expiration = str(milliseconds(seen.expiration))
        if seen.mode not in (None, 1, PERSISTENT) and self.host.behaviour.strict_delivery_mode:
            raise Refused(406, f"invalid message: {{delivery_mode_unknown,{seen.mode}}}")
        message.persistent = seen.mode == PERSISTENT
        message.priority = seen.priority
        if seen.has_headers:
            headers = checked_headers(message.raw)
            if "CC" in headers or "BCC" in headers:
                _add_copies(message, headers)
        if seen.reply_to == REPLY_TO.encode():
            self._await_reply(message)

    def _await_reply(self, message: Message) -> None:
        if not self.reply_name:
            raise Refused(406, "fast reply consumer does not exist")
        message.raw = with_reply_to(message.raw, self.reply_name)

    def _answer(self, message: Message) -> None:
        tag = 1
        if self.host.behaviour.replies_numbered:
            tag = self.last_tag = self.last_tag + 1
        self.outbox.tell(Deliver(self.number, self.reply_tag, tag, message, raw=message.raw, redelivered=False))


def _add_copies(message: Message, headers: Headers) -> None:
    """Read the headers CC and BCC, and take BCC away."""
    copies = {name: _keys(name, headers) for name in ("CC", "BCC") if name in headers}
    message.bcc = copies.get("BCC", ())
    message.more = copies.get("CC", ()) + message.bcc
    if "BCC" in copies:
        message.raw = with_table(message.raw, drop={"BCC"}, add=b"")


def _keys(name: str, headers: Headers) -> tuple[str, ...]:
    try:
        value = headers[name]
    except UndecodableHeaders as error:
        raise Refused(502, str(error)) from None
    if not isinstance(value, list):
        raise Refused(406, f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}')
    return tuple(key for key in value if isinstance(key, str))
