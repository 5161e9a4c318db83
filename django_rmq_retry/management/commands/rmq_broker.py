"""``manage.py rmq_broker``: runs the embedded broker by itself, for all processes of the project."""

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry.conf import settings
from django_rmq_retry.embedded import starting
from django_rmq_retry.embedded.engine.behaviour import BEHAVIOURS, behaviour
from django_rmq_retry.embedded.wire.serving import Server
from django_rmq_retry.management.base import Exit, Options, RmqCommand

VERSIONS = tuple(".".join(map(str, version)) for version in BEHAVIOURS)


class Command(RmqCommand):
    help = "Run the broker embedded:// until told to stop; for development, on this machine only, in memory."
    examples = ("rmq_broker", "rmq_broker --port 5673", "rmq_broker --like 4.3")

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--port", type=int, default=0, metavar="N", help="where to listen on 127.0.0.1; by default any free port")
        add("--like", choices=VERSIONS, default="4.0", help="the RabbitMQ that it behaves as; 4.0 by default")

    def run(self, options: Options) -> Exit | None:
        now = settings()
        if not now.address().embedded:
            self.say(f"RMQ_RETRY['URL'] is {now.address().shown}: this project's processes will not use this broker.")
        like = options["like"]
        try:
            starting.serve(
                now.folder(), port=options["port"], behaviour=behaviour(like), begun=lambda one: self._greet(one, like)
            )
        except OSError as error:
            raise CommandError(
                f"Port {options['port']} of 127.0.0.1: {error.strerror}.", returncode=Exit.ERROR
            ) from None
        self.line("The embedded broker has ended, and all its messages with it.")
        return None

    def _greet(self, server: Server, like: str) -> None:
        self.line(f"The embedded broker listens on {server.url} and behaves as RabbitMQ {like}.")
        self.line("It keeps its messages in memory. Ctrl-C ends it.")
        self.stdout.flush()
