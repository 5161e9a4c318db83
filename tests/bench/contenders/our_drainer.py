"""Our drainer: `manage.py rmq_consume --park-only -v 0`; each batch is counted when it is committed."""

import os
from collections.abc import Sequence

from django.core.management import execute_from_command_line

from django_rmq_retry import Delivery
from tests.bench.marks import Marks
from tests.bench.task import Task


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    # These imports need the settings.
    import django  # noqa: PLC0415 - as above

    django.setup()
    from django_rmq_retry.parked.store import RecordStore, Stored  # noqa: PLC0415 - as above

    marks, store = Marks(Task.given()), RecordStore.store

    def counted(self: RecordStore, batch: Sequence[Delivery]) -> Sequence[Stored]:
        stored = store(self, batch)
        for _ in stored:
            marks.tick()
        return stored

    RecordStore.store = counted  # type: ignore[method-assign]
    execute_from_command_line(["manage.py", "rmq_consume", "--park-only", "--verbosity", "0"])


if __name__ == "__main__":
    main()
