"""``manage.py rmq_parked``: the admin's actions on parked messages, for shells and scripts."""

from collections.abc import Callable
from functools import partial
from typing import Any

from django.core.management.base import CommandParser

from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management import (
    parked_approvals,
    parked_changes,
    parked_checked,
    parked_edits,
    parked_erasure,
    parked_runs,
    parked_views,
)
from django_rmq_retry.management.command import Options, RmqCommand


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
        add = self.subcommands(parser)

        def add_own(name: str, act: Callable[[RmqCommand, Options], Exit], **words: Any) -> CommandParser:
            return add(name, partial(act, self), **words)

        changing = (parked_changes, parked_checked, parked_edits, parked_erasure)
        for module in (parked_views, parked_runs, *changing, parked_approvals):
            module.add_arguments(add_own)
