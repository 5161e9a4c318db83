"""``manage.py rmq_broker``: run the embedded broker on its own, for all processes of the project."""

from pathlib import Path

from django.core.management.base import CommandError, CommandParser

from django_rmq_retry import conf
from django_rmq_retry.embedded import place
from django_rmq_retry.embedded.engine.behaviour import BEHAVIOURS, behaviour
from django_rmq_retry.embedded.wire import server
from django_rmq_retry.embedded.wire.server import BrokerServer
from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.command import Options, RmqCommand

VERSIONS = tuple(".".join(map(str, version)) for version in BEHAVIOURS)


class Command(RmqCommand):
    help = "Run the embedded broker until the process is stopped; for development on this machine only."
    examples = ("rmq_broker", "rmq_broker --port 5673", "rmq_broker --like 4.3", "rmq_broker --memory")

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1; any free port by default")
        add(
            "--like",
            choices=VERSIONS,
            default="4.0",
            help="RabbitMQ version whose behaviour it follows; 4.0 by default",
        )
        add("--memory", action="store_true", help="keep messages in memory only: start empty, and lose them at the end")

    def run(self, options: Options) -> Exit | None:
        settings = conf.settings()
        if not settings.address().embedded:
            self.say(
                f"RMQ_RETRY['URL'] is {settings.address().shown}, so this project's processes do not use this broker."
            )
        like, folder = options["like"], settings.folder()
        file = None if options["memory"] else folder / place.FILE_NAME
        try:
            server.serve(
                folder,
                port=options["port"],
                behaviour=behaviour(like),
                durable=file is not None,
                begun=lambda server: self._greet(server, like, file),
            )
        except OSError as error:
            raise CommandError(
                f"The broker cannot listen on port {options['port']} of 127.0.0.1: {error.strerror}.",
                returncode=Exit.ERROR,
            ) from None
        self.line("The embedded broker has ended" + (", and its messages are lost." if file is None else "."))
        return None

    def _greet(self, server: BrokerServer, like: str, file: Path | None) -> None:
        self.line(f"The embedded broker listens on {server.url} and behaves as RabbitMQ {like}.")
        self.line(
            f"It stores durable queues and persistent messages in {file}."
            if file
            else "It keeps its messages in memory."
        )
        self.line("Press Ctrl-C to stop it.")
        self.stdout.flush()
