"""``manage.py rmq_topology``: the project's exchanges, queues and messages, drawn or as a file, without a broker."""

import json

from django.conf import settings as project
from django.core.management.base import CommandParser

from django_rmq_retry.conf import project_version, settings
from django_rmq_retry.handlers import registry
from django_rmq_retry.handlers.asyncapi import asyncapi
from django_rmq_retry.handlers.layout import copies_of
from django_rmq_retry.management.command import Options, RmqCommand, usage_error
from django_rmq_retry.management.terminal import printable
from django_rmq_retry.topology.drawings import Shape, definitions, mermaid, svg, text

FORMATS = ("text", "mermaid", "svg", "definitions", "asyncapi")
NO_VERSION = "0"
"""Stands in an AsyncAPI document, which must have a version, if the setting VERSION is not set."""


def project_name() -> str:
    """Return the package of the project; "project" if it has no URLs."""
    return str(getattr(project, "ROOT_URLCONF", "")).partition(".")[0] or "project"


class Command(RmqCommand):
    help = (
        "Show the exchanges, queues and bindings that the project's handlers need, or the messages that they receive "
        "as an AsyncAPI document, without a connection to the broker."
    )
    examples = (
        "rmq_topology --format svg > topology.svg",
        "rmq_topology --format definitions > definitions.json",
        "rmq_topology --format asyncapi --title Payments > asyncapi.json",
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--format",
            choices=FORMATS,
            default="text",
            help="output format; text by default. asyncapi is JSON, which every YAML parser reads too",
        )
        parser.add_argument("--title", help="title of the AsyncAPI document; by default the package of ROOT_URLCONF")

    def run(self, options: Options) -> None:
        if options["title"] is not None and options["format"] != "asyncapi":
            raise usage_error("--title is for --format asyncapi.")
        topology, work_queues = registry.topology(), registry.work_queues()
        shape = Shape.of(topology, copies_of(work_queues))
        drawings = {
            "text": lambda: printable(text(shape)),
            "mermaid": lambda: mermaid(shape),
            "svg": lambda: svg(shape),
            "definitions": lambda: json.dumps(definitions(topology, vhost=settings().access().vhost), indent=2),
            "asyncapi": lambda: json.dumps(
                asyncapi(
                    work_queues,
                    topology,
                    title=options["title"] or project_name(),
                    version=project_version() or NO_VERSION,
                    vhost=settings().address().vhost,
                ),
                indent=2,
                # A parser of YAML would read the two escapes of an emoji as two characters.
                ensure_ascii=False,
            ),
        }
        self.stdout.write(drawings[options["format"]]())
