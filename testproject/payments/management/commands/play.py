"""What ``demo`` runs in its place: migrate, declare, consume, tell the story, sum up, serve the admin."""

import signal
from argparse import ArgumentParser
from typing import Any

from django.conf import settings
from django.contrib.auth.models import User
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from testproject.playing.beside import beside
from testproject.playing.story import Story
from testproject.playing.summary import summary

HINTS = """
The admin is on http://127.0.0.1:{port}/ for admin, password admin. What to try there:
  Payments, Add       a payment; its message leaves as the admin's transaction commits
  Gateway             does not answer: card payments are retried until it does
  Accounts            a limit: cash above it is retried three times, then parked
Ctrl-C ends everything."""


class Command(BaseCommand):
    help = "Play the story on the database and broker of the settings; `demo` gives it a place of its own."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--once", action="store_true", help="end after the summary")
        parser.add_argument("--port", type=int, default=8000, help="where the admin is served")

    def handle(self, *_args: Any, once: bool, port: int, **_options: Any) -> None:
        if not settings.DEBUG:
            raise CommandError("The play makes a superuser admin with the password admin, so it wants DEBUG=1.")
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            self._play(once=once, port=port)
        except KeyboardInterrupt:
            self.stdout.write("\nThe bank closes.")

    def _play(self, *, once: bool, port: int) -> None:
        call_command("migrate", verbosity=0)
        if not User.objects.filter(username="admin").exists():
            User.objects.create_superuser("admin", password="admin")
        self._say("manage.py rmq_declare")
        call_command("rmq_declare", stdout=self.stdout)
        self._say("manage.py rmq_consume --threads 4")
        with beside("rmq_consume", "--threads", "4"):
            Story(self._say).tell()
            self.stdout.write(summary())
            if once:
                return
            with beside("runserver", "--noreload", "--verbosity", "0", f"127.0.0.1:{port}") as server:
                self.stdout.write(HINTS.format(port=port))
                server.wait()
                raise CommandError(f"Port {port} is taken. Another one: make demo ARGS='--port 8001'")

    def _say(self, text: str) -> None:
        self.stdout.write("\n" + self.style.MIGRATE_HEADING(f"» {text}"))
        self.stdout.flush()
