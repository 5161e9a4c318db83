"""``manage.py rmq_parked``: the admin's actions on parked messages, for shells and scripts."""

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from django_rmq_retry.management import parked_actions, parked_changes, parked_views
from django_rmq_retry.management.arguments import refused
from django_rmq_retry.management.command import Exit, Options, RmqCommand, add_common, add_json
from django_rmq_retry.parked.operators import Refused

ACTIONS: dict[str, Callable[[RmqCommand, Options], Exit]] = {
    "list": parked_views.show_list,
    "keys": parked_views.show_keys,
    "groups": parked_views.show_groups,
    "show": parked_views.show_one,
    "requeue-runs": parked_views.show_runs,
    "requeue": parked_actions.requeue,
    "requeue-run": parked_actions.drive_run,
    "discard": parked_actions.change,
    "restore": parked_actions.change,
    "hold": parked_actions.change,
    "unhold": parked_actions.change,
    "edit": parked_changes.edit,
    "export": parked_changes.export_messages,
    "import": parked_changes.import_messages,
    "purge": parked_changes.purge_messages,
}


class Command(RmqCommand):
    help = "List parked messages, and requeue, discard, hold or edit them."
    examples = (
        "rmq_parked groups",
        "rmq_parked requeue --group 41 --rate 20 --canary --reason INC-553",
        "rmq_parked list --group 41 --since 1h --json",
    )
    common = ("timeout", "using")
    patience = 3.0

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="subcommand", required=True, metavar="ACTION")

        def add(name: str, **words: Any) -> CommandParser:
            parser: CommandParser = actions.add_parser(name, description=words["help"], **words)
            add_json(parser)
            add_common(parser, self.common)
            return parser

        for module in (parked_views, parked_actions, parked_changes):
            module.add_arguments(add)

    def run(self, options: Options) -> Exit | None:
        try:
            return ACTIONS[options["subcommand"]](self, options)
        except Refused as error:
            raise refused(error) from error
