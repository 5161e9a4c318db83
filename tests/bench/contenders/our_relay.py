"""Our relay, in a Django project, with a filled outbox."""

import os

import django

from tests.bench.task import Task, payload


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    django.setup()
    # Settings can be read only after setup().
    from tests.bench.project.handlers import charge, marks  # noqa: PLC0415
    from tests.outbox.made import emptied, insert_unsent, relay  # noqa: PLC0415

    task = Task.given()
    ours = relay("default")
    for measured, count in ((False, task.skip), (True, task.messages)):
        insert_unsent([charge.message(payload(number)) for number in range(count)], using="default")
        if measured:
            marks.say("start")
        emptied(ours)
    marks.say("end")


if __name__ == "__main__":
    main()
