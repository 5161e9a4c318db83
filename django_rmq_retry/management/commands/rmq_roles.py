"""``manage.py rmq_roles``: five groups of permissions for people who work with parked messages."""

from collections.abc import Mapping

from django.contrib.auth.models import Group, Permission
from django.core.management.base import CommandError, CommandParser
from django.db import router

from django_rmq_retry.exit_codes import Exit
from django_rmq_retry.management.command import Options, RmqCommand, add_json
from django_rmq_retry.parked.operators import LABEL, PERMISSIONS
from django_rmq_retry.statements import writing

LOOKS = (
    *("view", "view_group", "view_run", "view_status", "view_queue", "view_key", "view_outbox"),
    *("view_audit", "view_request"),
)
"""Permissions to look. The audit log shows users their own actions, unless they may see those of others."""
ONCALL = (
    *LOOKS,
    *("view_payload", "view_traceback", "requeue", "bulk_requeue", "discard", "hold", "export", "note", "control"),
    *("pause_queue", "send_waiting", "unblock", "retry", "discard_outbox", "approve"),
)
ROLES: Mapping[str, tuple[str, ...]] = {
    "support": (*LOOKS, "requeue", "hold", "note"),
    "on-call": ONCALL,
    "developer": (*LOOKS, "view_payload", "view_traceback", "export", "note"),
    "auditor": (*LOOKS, "view_all_audit", "view_traceback", "export"),
    "lead": (*ONCALL, "reveal", "view_all_audit", "edit", "bulk_edit"),
}


class Command(RmqCommand):
    help = "Create groups of permissions for operators; the permissions of existing groups are replaced."
    examples = ("rmq_roles", "rmq_roles --prefix payments- --only support", "rmq_roles --dry-run --json")
    common = ("using",)
    also_using = ("auth", "contenttypes")

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--prefix", default="rmq ", metavar="TEXT", help="prefix of each group's name; “rmq ” by default"
        )
        parser.add_argument("--only", action="append", choices=ROLES, help="only this role; repeatable")
        parser.add_argument("--dry-run", action="store_true", help="change nothing; show the groups")
        add_json(parser)

    def run(self, options: Options) -> Exit | None:
        roles = {
            f"{options['prefix']}{name}": list(dict.fromkeys(PERMISSIONS[verb][0] for verb in ROLES[name]))
            for name in options["only"] or ROLES
        }
        if not options["dry_run"]:
            with writing(Group, using=router.db_for_write(Group)):
                for name, codenames in roles.items():
                    _set(name, codenames)
        if options["json"]:
            self.document("roles/1", roles=roles, done=not options["dry_run"])
            return Exit.DONE
        self.table([("GROUP", "PERMISSIONS"), *((name, ", ".join(codes)) for name, codes in roles.items())])
        return Exit.DONE


def _set(name: str, codenames: list[str]) -> None:
    permissions = list(Permission.objects.filter(content_type__app_label=LABEL, codename__in=codenames))
    if len(permissions) != len(codenames):
        raise CommandError("The permissions do not exist yet. Run `manage.py migrate`.", returncode=Exit.DRIFT)
    Group.objects.get_or_create(name=name)[0].permissions.set(permissions)
