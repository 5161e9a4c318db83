"""Our publisher in a Django project: in a window, or one by one from several threads."""

import os
from concurrent.futures import ThreadPoolExecutor

import django

from tests.bench.task import Task, payload


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    django.setup()
    task = Task.given()
    if task.window:
        in_a_window(task)
    else:
        one_by_one(task)


def in_a_window(task: Task) -> None:
    """Publish by `publish_many`, like a project with many messages."""
    from django_rmq_retry import publish_many  # noqa: PLC0415 - Django must be set up first
    from tests.bench.project.handlers import charge, marks  # noqa: PLC0415

    publish_many((charge.message(payload(number)) for number in range(task.skip)), window=task.window)
    marks.say("start")
    publish_many((charge.message(payload(number)) for number in range(task.messages)), window=task.window)
    marks.say("end")


def one_by_one(task: Task) -> None:
    """Wait for each confirm in each thread, like views."""
    from tests.bench.project.handlers import charge, marks  # noqa: PLC0415 - Django must be set up first

    def publish(share: int) -> None:
        for number in range(share):
            charge.publish(payload(number))

    def all_threads(total: int) -> None:
        list(pool.map(publish, [total // task.threads] * task.threads))

    with ThreadPoolExecutor(task.threads) as pool:
        all_threads(task.skip)
        marks.say("start")
        all_threads(task.messages)
        marks.say("end")


if __name__ == "__main__":
    main()
