"""``manage.py rmq_publish``: publish one message, from a file or from stdin."""

import argparse
import json
import logging
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.errors import ConfigurationError, HeadersTooLarge, MessageTooLarge, MessageUnsent, UndecodableBody
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.handler import destination_of
from django_rmq_retry.management.command import Options as Given
from django_rmq_retry.management.command import RmqCommand, add_json, check_known, usage_error
from django_rmq_retry.messages.codecs import JSON, Codec, Raw
from django_rmq_retry.messages.message import Message
from django_rmq_retry.publishing.options import MOST_PRIORITY, PublishOptions, seconds_of
from django_rmq_retry.publishing.publish import dispatch, message_of
from django_rmq_retry.topology.declarations import MOST_NAME_BYTES

log = logging.getLogger("django_rmq_retry")

PUBLISH_OPTIONS = (
    *("type", "priority", "expiration", "correlation_id", "message_id", "delay", "reply_to", "app_id", "user_id"),
    *("timestamp", "content_encoding"),
)
"""The publish options that have a command argument of the same name."""
REMARKS_FROM_VERBOSITY = 2
"""The verbosity from which remarks are written while the command waits for a broker."""


class Command(RmqCommand):
    help = "Publish one message, wait for the broker's confirm, and print the message id."
    examples = (
        "rmq_publish --handler payments.handlers.charge payment.json",
        "rmq_publish --queue payments.charge --header tenant=acme payment.json",
        "rmq_publish --exchange photos --routing-key photo.new --raw --content-type image/png cat.png",
    )
    common = ("timeout",)

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("file", nargs="?", default="-", metavar="FILE", help="file with the body; stdin by default")
        where = parser.add_mutually_exclusive_group(required=True)
        where.add_argument("--handler", metavar="NAME", help="to the queue of this handler, as this handler takes it")
        where.add_argument("--queue", type=name, help="to this queue only")
        where.add_argument("--exchange", type=name, help="to this exchange")
        add(
            "--routing-key",
            type=name,
            default="",
            metavar="KEY",
            help="with --exchange, or for a handler that matches by routing key",
        )
        add(
            "--header",
            action="append",
            type=header,
            default=[],
            metavar="K=V",
            help="set a header; repeatable; K:=V is JSON",
        )
        add("--type", type=name, help="the message's type")
        add("--priority", type=priority, metavar="N", help="0 to 255, for queues with priorities")
        add("--expiration", type=float, metavar="S", help="seconds after which the message expires in its queue")
        add("--correlation-id", type=name, metavar="ID", help="correlation id, which the answer carries too")
        add("--message-id", type=name, metavar="ID", help="message id; the same one when a message is published again")
        add("--delay", type=float, metavar="S", help="seconds to wait before the handler gets the message")
        add("--reply-to", type=name, metavar="QUEUE", help="the queue for the answer")
        add("--app-id", type=name, metavar="ID", help="name of the publishing program")
        add("--user-id", type=name, metavar="USER", help="the user of the connection; RabbitMQ refuses any other")
        add("--timestamp", type=timestamp, metavar="TIME", help="2026-11-22T10:00:00Z, or seconds; now by default")
        add(
            "--content-encoding", type=name, metavar="CODING", help="encoding of the body, such as gzip; requires --raw"
        )
        add("--content-type", type=name, metavar="TYPE", help="type of the body; JSON by default")
        add("--raw", action="store_true", help="send the body as it is, without checking that it is JSON")
        add_json(parser)

    def run(self, options: Given) -> Exit | None:
        if options["verbosity"] < REMARKS_FROM_VERBOSITY:
            log.setLevel(logging.ERROR)
        try:
            message = self._message(self._body(options["file"]), options)
        except (ConfigurationError, HeadersTooLarge) as error:
            raise usage_error(str(error)) from error
        try:
            published = dispatch(message, timeout=options["timeout"], immediate=True)
        except MessageTooLarge as error:
            raise CommandError(str(error), returncode=Exit.DRIFT) from error
        except MessageUnsent as error:
            raise CommandError(str(error), returncode=Exit.UNREACHABLE) from error
        if options["json"]:
            place = {"exchange": message.exchange, "routing_key": message.routing_key}
            self.document("publish/1", message_id=published, **place, bytes=len(message.body))
        else:
            self.line(published)
        return None

    def _body(self, file: str) -> bytes:
        if file == "-":
            if sys.stdin.isatty():
                self.say("Reading the message from the keyboard. Press Ctrl-D to end it.")
            return sys.stdin.buffer.read()
        try:
            return Path(file).read_bytes()
        except OSError as error:
            raise usage_error(f"{file} cannot be read: {error.strerror}.") from error

    def _message(self, body: bytes, options: Given) -> Message:
        check_known("handler", [options["handler"]] if options["handler"] else [], registry.registrations())
        subscription = registry.subscription(options["handler"]) if options["handler"] else None
        exchange, key = options["exchange"] or "", options["routing_key"]
        if options["queue"]:
            if key:
                raise usage_error("--queue cannot be combined with --routing-key: the queue's name is the routing key.")
            key = options["queue"]
        codec = None if options["raw"] else subscription.codec if subscription else JSON
        if codec is not None and options["content_type"] not in (None, codec.content_type):
            # The body is of a type that the codec does not write.
            codec = None
        content_type = options["content_type"] or (Raw if codec is None else codec).content_type
        if options["content_encoding"] and not options["raw"]:
            raise usage_error("--content-encoding requires --raw.")
        given = {name: options[name] for name in PUBLISH_OPTIONS}
        publish_options = PublishOptions(headers=dict(options["header"]) or None, content_type=content_type, **given)
        # Send the exact bytes: a test of a handler needs full control over its input.
        raw = replace(destination_of(subscription), codec=Raw()) if subscription else None
        message = message_of(
            body, exchange=exchange, routing_key=key, codec=Raw(), options=publish_options, destination=raw
        )
        if codec is not None:
            _check_body(message, codec)
        return message


def _check_body(message: Message, codec: Codec) -> None:
    """Refuse a body that the codec of its handler, or JSON, cannot read."""
    try:
        codec.decode(message.body, message.properties)
    except UndecodableBody as error:
        raise usage_error(f"{error} Pass --raw to send it as it is, or name its type with --content-type.") from error


def name(text: str) -> str:
    """Parse an argument: a name that AMQP can express."""
    size = len(text.encode("utf-8", "surrogateescape"))
    if size > MOST_NAME_BYTES:
        raise argparse.ArgumentTypeError(f"takes at most {MOST_NAME_BYTES} bytes, not {size}")
    return text


def priority(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) <= MOST_PRIORITY):
        raise argparse.ArgumentTypeError(f"takes a whole number from 0 to {MOST_PRIORITY}, not {text!r}")
    return int(text)


def timestamp(text: str) -> int:
    try:
        return seconds_of(int(text) if text.isascii() and text.isdigit() else datetime.fromisoformat(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"takes 2026-11-22T10:00:00Z or seconds since 1970, not {text!r}") from error


def header(text: str) -> tuple[str, object]:
    """Parse an argument: ``tenant=acme`` is a text, ``amount:=7`` a JSON value."""
    name, equals, value = text.partition("=")
    if not equals or not name.rstrip(":"):
        raise argparse.ArgumentTypeError(f"takes NAME=text or NAME:=json, not {text!r}")
    if not name.endswith(":"):
        return name, value
    try:
        return name[:-1], json.loads(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{value!r} is not JSON; for a text, write NAME=text") from None
