"""Checks of the outbox: where messages would leave on commit although the settings say otherwise."""

from collections.abc import Iterator

from django.apps import apps
from django.core.checks import CheckMessage, register
from django.db import DEFAULT_DB_ALIAS, connections, router

from django_rmq_retry.checks.saying import TAG, error, warning, with_settings
from django_rmq_retry.conf import Settings


@register(TAG)
@with_settings
def check_outbox(settings: Settings) -> Iterator[CheckMessage]:
    named = settings.outbox
    if named is False:
        return
    aliases = [DEFAULT_DB_ALIAS] if named is True else list(named)
    for alias in aliases:
        if alias not in connections:
            yield error(
                "E040",
                f"RMQ_RETRY['OUTBOX'] names the database {alias!r}, and DATABASES has none of that name.",
                hint=f"Known: {', '.join(connections)}.",
            )
        elif not router.allow_migrate_model(alias, apps.get_model("rmq_retry", "OutboxMessage")):
            yield warning(
                "W040",
                f"The database {alias!r} has no outbox, for a router keeps its table away: what is published inside "
                "its transactions leaves on commit, and is lost when the process ends just then.",
                hint="Let allow_migrate() return True for the app label 'rmq_retry' there, or set 'OUTBOX' to what is "
                "meant.",
            )
