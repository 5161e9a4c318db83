"""One channel: consume, publish, ack, reject and recover."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from itertools import takewhile

from django_rmq_retry.embedded.engine.behaviour import Return
from django_rmq_retry.embedded.engine.consumers import BrokerConsumer, Credit
from django_rmq_retry.embedded.engine.declarations import REPLY_TO, Declaring
from django_rmq_retry.embedded.engine.entries import Entry
from django_rmq_retry.embedded.engine.envelopes import (
    MADE_HERE,
    NO_PROPERTIES,
    Cancel,
    Deliver,
    Glance,
    Got,
    Nack,
    Returned,
    StoredMessage,
    checked_headers,
    decoded_properties,
    with_table,
)
from django_rmq_retry.embedded.engine.queue import BrokerQueue, dressed
from django_rmq_retry.embedded.engine.refusals import RequestRefused
from django_rmq_retry.embedded.engine.routing import BrokerExchange
from django_rmq_retry.embedded.engine.specs import integer_problem, type_name
from django_rmq_retry.embedded.engine.vhost import EventOutbox, Vhost
from django_rmq_retry.errors import UndecodableHeaders
from django_rmq_retry.messages.properties import Headers, encode_properties

Held = tuple[BrokerConsumer | None, BrokerQueue, Entry]


class Publishing(Declaring):
    """The publishing half of a channel, with direct reply-to."""

    def __init__(self, vhost: Vhost, outbox: EventOutbox, number: int, *, user: str) -> None:
        super().__init__(vhost, outbox)
        self.number = number
        self.user = user
        self.confirming = False
        self.published = 0
        self.reply_name = ""
        """The reply_to of this channel's requests; empty while it has no consumer for replies."""
        self.reply_tag = ""
        self.last_tag = 0

    def confirm_select(self) -> None:
        self.confirming = True

    def tx_select(self) -> None:
        if self.confirming:
            raise RequestRefused(406, "cannot switch from confirm to tx mode")
        raise RequestRefused(540, "the embedded broker has no transactions; use publisher confirms")

    def tx_commit(self) -> None:
        raise RequestRefused(406, "channel is not transactional")

    def tx_rollback(self) -> None:
        raise RequestRefused(406, "channel is not transactional")

    def publish(
        self, exchange: str, key: str, raw: bytes, body: bytes, *, mandatory: bool = False, immediate: bool = False
    ) -> None:
        """Publish one message; returns, confirms and deliveries go to the outboxes of their clients."""
        vhost = self.vhost
        if immediate:
            raise RequestRefused(540, "immediate=true")
        if len(body) > vhost.behaviour.max_message:
            most = vhost.behaviour.max_message
            raise RequestRefused(406, f"message size {len(body)} is larger than configured max size {most}")
        source = vhost.exchange(exchange)
        if source.spec.internal:
            raise RequestRefused(403, f"cannot publish to internal exchange '{exchange}' in vhost '{vhost.name}'")
        message = StoredMessage(source.name, key, raw, body)
        if raw != NO_PROPERTIES:
            self._read(message, Glance(raw))
        taken = self._spread(source, message, mandatory=mandatory)
        if self.confirming:
            self.published += 1
            if taken:
                self.outbox.confirm(self.number, self.published)
            else:
                self.outbox.put(Nack(self.number, self.published))
        if vhost.shared.graves:
            vhost.settle()

    def _spread(self, source: BrokerExchange, message: StoredMessage, *, mandatory: bool) -> bool:
        """Offer the message to every queue; return False if one of them is full."""
        vhost = self.vhost
        queues = vhost.router.route(source, message)
        if not queues:
            self._spread_nowhere(source, message, mandatory=mandatory)
            return True
        taken = True
        for queue in queues:
            if not queue.offer(message):
                vhost.shared.lost["refused"] += 1
                taken = False
        return taken

    def _spread_nowhere(self, source: BrokerExchange, message: StoredMessage, *, mandatory: bool) -> None:
        vhost = self.vhost
        # The channel that had this name may have closed since.
        replies = source is vhost.router.default and message.key.startswith(MADE_HERE)
        answered = vhost.repliers.get(message.key) if replies else None
        if answered is not None:
            answered(message)
        else:
            vhost.shared.lost["unroutable"] += 1
        if mandatory and (not replies or vhost.behaviour.replies_return):
            self.outbox.put(Returned(self.number, message))

    def _read(self, message: StoredMessage, seen: Glance) -> None:
        if seen.names_user:
            named = decoded_properties(message.raw).user_id
            if named != self.user:
                why = f"user_id property set to '{named}' but authenticated user was '{self.user}'"
                raise RequestRefused(406, why)
        message.note(seen)
        if seen.has_headers:
            headers = checked_headers(message.raw)
            if "CC" in headers or "BCC" in headers:
                _add_copies(message, headers)
        if seen.reply_to == REPLY_TO.encode():
            if not self.reply_name:
                raise RequestRefused(406, "fast reply consumer does not exist")
            message.raw = encode_properties(replace(decoded_properties(message.raw), reply_to=self.reply_name))

    def _answer(self, message: StoredMessage) -> None:
        tag = 1
        if self.vhost.behaviour.replies_numbered:
            tag = self.last_tag = self.last_tag + 1
        self.outbox.put(Deliver(self.number, self.reply_tag, tag, message, raw=message.raw, redelivered=False))


def _add_copies(message: StoredMessage, headers: Headers) -> None:
    """Read the headers CC and BCC, and remove BCC."""
    copies = {name: _keys(name, headers) for name in ("CC", "BCC") if name in headers}
    message.bcc = copies.get("BCC", ())
    message.more = copies.get("CC", ()) + message.bcc
    if "BCC" in copies:
        message.raw = with_table(message.raw, drop={"BCC"}, add=b"")


def _keys(name: str, headers: Headers) -> tuple[str, ...]:
    try:
        value = headers[name]
    except UndecodableHeaders as error:
        raise RequestRefused(502, str(error)) from None
    if not isinstance(value, list):
        raise RequestRefused(406, f'invalid message: {{unacceptable_type_in_header,"{name}",{type_name(value)}}}')
    return tuple(key for key in value if isinstance(key, str))


class BrokerChannel(Publishing):
    """The methods of AMQP 0-9-1 as plain calls. A refusal is raised; the caller closes the channel."""

    def __init__(self, vhost: Vhost, outbox: EventOutbox, number: int, *, user: str) -> None:
        super().__init__(vhost, outbox, number, user=user)
        self.unacked: dict[int, Held] = {}
        self.consumers: dict[str, tuple[BrokerConsumer, BrokerQueue]] = {}
        self._credit = Credit(outbox.valve)
        self._prefetch = 0

    def qos(self, prefetch: int = 0, *, size: int = 0, channel_wide: bool = False) -> None:
        """Limit each consumer started from now on, or with channel-wide (global=true) all of this channel together."""
        if size:
            raise RequestRefused(540, f"prefetch_size!=0 ({size})")
        if not channel_wide or not self.vhost.behaviour.channel_prefetch:
            # Setting one kind of limit clears the other (rabbit_channel, basic.qos).
            self._prefetch, self._credit.limit = prefetch, 0
            return
        self._credit.limit = prefetch
        self._wake_all()

    def consume(
        self,
        queue: str = "",
        tag: str = "",
        *,
        no_ack: bool = False,
        exclusive: bool = False,
        arguments: Mapping[str, object] | None = None,
    ) -> str:
        """Start a consumer and return its tag; deliveries follow in the outbox."""
        tag = tag or f"amq.ctag-{self.vhost.random_name()}"
        if queue == REPLY_TO:
            return self._consume_replies(tag, no_ack=no_ack)
        if tag in self.consumers:
            raise RequestRefused(530, f"attempt to reuse consumer tag '{tag}'")
        named_queue = self._own_queue(self._named(queue))
        priority = (arguments or {}).get("x-priority", 0)
        if isinstance(priority, bool) or not isinstance(priority, int):
            raise RequestRefused(
                406, f"invalid arg 'x-priority' for {named_queue.spec.thing}: {integer_problem(priority)}"
            )
        exclusive = exclusive and not named_queue.spec.quorum
        if named_queue.roster.exclusive or (exclusive and (named_queue.roster.members or named_queue.roster.single)):
            raise RequestRefused(403, f"{named_queue.spec.thing} in exclusive use")
        if named_queue.spec.quorum and self._credit.limit:
            raise RequestRefused(540, f"{named_queue.spec.thing} does not support global qos")
        consumer = BrokerConsumer(
            tag, self._credit, no_ack=no_ack, prefetch=self._prefetch, exclusive=exclusive, priority=priority
        )
        consumer.take = partial(self._deliver, consumer, named_queue)
        consumer.gone = partial(self._queue_gone, tag)
        self.consumers[tag] = (consumer, named_queue)
        if named_queue.lease is not None:
            named_queue.lease.stop()
        named_queue.roster.add(consumer)
        named_queue.dispatch()
        self.vhost.settle()
        return tag

    def cancel(self, tag: str) -> None:
        """End a consumer; its unacked messages stay with the channel."""
        if tag == self.reply_tag:
            self._end_replies()
        if tag in self.consumers:
            consumer, queue = self.consumers.pop(tag)
            queue.roster.remove(consumer)
            queue.dispatch()
            self._left(queue)
            self.vhost.settle()

    def get(self, queue: str = "", *, no_ack: bool = False) -> Got | None:
        named_queue = self._own_queue(self._named(queue))
        if named_queue.spec.quorum and named_queue.roster.single:
            what = "basic.get operations are not supported by quorum queues with single active consumer"
            raise RequestRefused(405, f"cannot obtain access to locked {named_queue.spec.thing}. {what}")
        if named_queue.lease is not None:
            named_queue.lease.fetched()
        entry = named_queue.fetch()
        self.vhost.settle()
        if entry is None:
            return None
        self.last_tag += 1
        if no_ack:
            named_queue.done(entry)
        else:
            self.unacked[self.last_tag] = (None, named_queue, entry)
            named_queue.note(entry, "held")
        raw, redelivered = dressed(named_queue, entry)
        return Got(self.last_tag, entry.message, raw=raw, redelivered=redelivered, left=named_queue.ready.count)

    def ack(self, tag: int, *, multiple: bool = False) -> None:
        for consumer, queue, entry in self._take_unacked(tag, multiple=multiple):
            queue.done(entry)
            if consumer is not None and (queue.ready.count or not consumer.waits):
                queue.freed(consumer)
        if self._credit.limit:
            self._wake_all()
        if self.vhost.shared.graves:
            self.vhost.settle()

    def nack(self, tag: int, *, multiple: bool = False, requeue: bool = True) -> None:
        self._return(self._take_unacked(tag, multiple=multiple), "nack", requeue=requeue)

    def reject(self, tag: int, *, requeue: bool = True) -> None:
        self._return(self._take_unacked(tag, multiple=False), "reject", requeue=requeue)

    def recover(self, *, requeue: bool = True) -> None:
        if not requeue:
            raise RequestRefused(540, "requeue=false")
        self._return(self._take_unacked(0, multiple=True), "recover", requeue=True)

    def stop_consuming(self) -> list[BrokerQueue]:
        """End all consumers, without offering their queues' messages to other consumers yet."""
        if self.reply_name:
            self._end_replies()
        ended = [queue for _, queue in self.consumers.values()]
        for consumer, queue in self.consumers.values():
            queue.roster.remove(consumer)
        self.consumers.clear()
        return ended

    def return_unacked(self) -> None:
        """Return every unacked message to its queue, as the end of a channel does."""
        self._return(self._take_unacked(0, multiple=True), "lost", requeue=True)

    def close(self) -> None:
        """End the channel: its consumers first, then its unacked messages return in order."""
        ended = self.stop_consuming()
        self.return_unacked()
        self.wake(ended)

    def wake(self, queues: Iterable[BrokerQueue]) -> None:
        """Offer the messages of these queues to other consumers."""
        for queue in queues:
            queue.dispatch()
            self._left(queue)
        self.vhost.settle()

    def _deliver(self, consumer: BrokerConsumer, queue: BrokerQueue, entry: Entry) -> None:
        self.last_tag = tag = self.last_tag + 1
        if consumer.no_ack:
            queue.done(entry)
        else:
            self.unacked[tag] = (consumer, queue, entry)
            queue.note(entry, "held")
            consumer.unacked += 1
            self._credit.unacked += 1
        raw, redelivered = dressed(queue, entry)
        self.outbox.valve.pass_on(len(raw) + len(entry.message.body))
        self.outbox.put(Deliver(self.number, consumer.tag, tag, entry.message, raw=raw, redelivered=redelivered))

    def _take_unacked(self, tag: int, *, multiple: bool) -> list[Held]:
        """Remove and return the unacked messages that a client settles."""
        unacked = self.unacked
        if tag not in unacked and not (multiple and tag == 0):
            raise RequestRefused(406, f"unknown delivery tag {tag}")
        tags = [tag]
        if multiple:
            tags = list(takewhile(tag.__ge__, unacked)) if tag else list(unacked)
        settled = [unacked.pop(one) for one in tags]
        for consumer, _, _ in settled:
            if consumer is not None:
                consumer.unacked -= 1
                self._credit.unacked -= 1
        return settled

    def _return(self, returned: list[Held], how: Return, *, requeue: bool) -> None:
        back: dict[BrokerQueue, list[Entry]] = {}
        for _, queue, entry in returned:
            if requeue:
                back.setdefault(queue, []).append(entry)
            else:
                queue.reject(entry, how)
        for consumer, queue, _ in returned:
            if consumer is not None:
                queue.roster.wake(consumer)
        for queue, entries in back.items():
            queue.give_back(entries, how)
        if not requeue:
            for consumer, queue, _ in returned:
                if consumer is not None:
                    queue.freed(consumer)
        if self._credit.limit:
            self._wake_all()
        self.vhost.settle()

    def _wake_all(self) -> None:
        for consumer, queue in list(self.consumers.values()):
            queue.freed(consumer)
        self.vhost.settle()

    def _queue_gone(self, tag: str) -> None:
        self.consumers.pop(tag, None)
        if self.outbox.supports_cancel:
            self.outbox.put(Cancel(self.number, tag))

    def _left(self, queue: BrokerQueue) -> None:
        """Delete an auto-delete queue, or start its lease, after its last consumer has left."""
        if queue.roster.members or queue.closed:
            return
        if queue.spec.auto_delete:
            self.vhost.remove_queue(queue)
        elif queue.lease is not None:
            queue.lease.renew()

    def _consume_replies(self, tag: str, *, no_ack: bool) -> str:
        if not no_ack:
            raise RequestRefused(406, "reply consumer cannot acknowledge")
        if self.reply_name:
            raise RequestRefused(406, "reply consumer already set")
        self.reply_name = MADE_HERE + self.vhost.random_name()
        self.reply_tag = tag
        self.vhost.repliers[self.reply_name] = self._answer
        return tag

    def _end_replies(self) -> None:
        self.vhost.repliers.pop(self.reply_name, None)
        self.reply_name = self.reply_tag = ""
