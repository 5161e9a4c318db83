"""Our relay, in a Django project, with a filled outbox."""

import os
import threading

import django

from tests.bench.task import Task, payload


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    django.setup()
    # Settings can be read only after setup().
    from django_rmq_retry.publishing import broker_connections  # noqa: PLC0415
    from django_rmq_retry.publishing.outbox_rows import insert  # noqa: PLC0415
    from django_rmq_retry.publishing.relay import Relay  # noqa: PLC0415
    from tests.bench.project.handlers import charge, marks  # noqa: PLC0415

    task = Task.given()
    relay = Relay("default", ended=threading.Event())
    for measured, count in ((False, task.skip), (True, task.messages)):
        insert([charge.message(payload(number)) for number in range(count)], using="default", lease=0.0)
        if measured:
            marks.say("start")
        while not relay.turn().nothing:
            pass
    marks.say("end")
    broker_connections.close()


if __name__ == "__main__":
    main()
