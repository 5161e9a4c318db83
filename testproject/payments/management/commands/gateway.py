"""Set or show the state of the other bank: ``manage.py gateway down``."""

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand

from testproject.payments import gateway
from testproject.payments.models import Gateway


class Command(BaseCommand):
    help = "Show or set how the other bank answers."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("mode", nargs="?", choices=Gateway.Mode.values)

    def handle(self, *_args: Any, mode: str | None = None, **_options: Any) -> None:
        if mode:
            gateway.become(mode)
        self.stdout.write(f"The other bank {Gateway.Mode(gateway.mode()).label}.")
