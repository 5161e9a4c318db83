"""``manage.py rmq_parked``: what the admin does with parked messages, for shells and scripts."""

from collections.abc import Callable
from typing import Any

from django.core.management.base import CommandParser

from django_rmq_retry.management import parked_acting, parked_changing, parked_looking
from django_rmq_retry.management.base import Exit, Options, RmqCommand, add_common, add_json
from django_rmq_retry.management.choosing import refused
from django_rmq_retry.operating.refusals import Refused

ACTS: dict[str, Callable[[RmqCommand, Options], Exit]] = {
    "list": parked_looking.show_list,
    "groups": parked_looking.show_groups,
    "show": parked_looking.show_one,
    "runs": parked_looking.show_runs,
    "requeue": parked_acting.requeue,
    "run": parked_acting.drive_run,
    "discard": parked_acting.act,
    "restore": parked_acting.act,
    "hold": parked_acting.act,
    "release": parked_acting.act,
    "edit": parked_changing.edit,
    "export": parked_changing.export_messages,
    "import": parked_changing.import_messages,
    "purge": parked_changing.purge_messages,
}


class Command(RmqCommand):
    help = "Look at parked messages and decide what becomes of them."
    examples = (
        "rmq_parked groups",
        "rmq_parked requeue --group 41 --rate 20 --canary --reason INC-553",
        "rmq_parked list --group 41 --since 1h --json",
    )
    common = ("timeout", "using")
    patience = 3.0

    def add_arguments(self, parser: CommandParser) -> None:
        acts = parser.add_subparsers(dest="act", required=True, metavar="ACT")

        def add(name: str, **words: Any) -> CommandParser:
            made: CommandParser = acts.add_parser(name, description=words["help"], **words)
            add_json(made)
            add_common(made, self.common)
            return made

        for module in (parked_looking, parked_acting, parked_changing):
            module.add_arguments(add)

    def run(self, options: Options) -> Exit | None:
        try:
            return ACTS[options["act"]](self, options)
        except Refused as error:
            raise refused(error) from error
