"""``manage.py rmq_topology``: the project's exchanges and queues, drawn or as definitions, without a broker."""

import json

from django.core.management.base import CommandParser

from django_rmq_retry.conf import settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.layout import copies_of
from django_rmq_retry.management.command import Options, RmqCommand
from django_rmq_retry.management.terminal import printable
from django_rmq_retry.topology.drawings import Shape, definitions, mermaid, svg, text

FORMATS = ("text", "mermaid", "svg", "definitions")


class Command(RmqCommand):
    help = (
        "Show the exchanges, queues and bindings that the project's handlers need, without a connection to the broker."
    )
    examples = (
        "rmq_topology",
        "rmq_topology --format svg > topology.svg",
        "rmq_topology --format definitions > definitions.json",
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--format", choices=FORMATS, default="text", help="output format; text by default")

    def run(self, options: Options) -> None:
        topology = registry.topology()
        shape = Shape.of(topology, copies_of(registry.work_queues()))
        drawings = {
            "text": lambda: printable(text(shape)),
            "mermaid": lambda: mermaid(shape),
            "svg": lambda: svg(shape),
            "definitions": lambda: json.dumps(definitions(topology, vhost=settings().access().vhost), indent=2),
        }
        self.stdout.write(drawings[options["format"]]())
