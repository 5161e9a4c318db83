"""Our consumer: `manage.py rmq_consume -v 0` in a Django project, with all its features on."""

import os

from django.core.management import execute_from_command_line

from tests.bench.task import Task


def main() -> None:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    task = Task.given()
    options = ["--threads", str(task.threads), "--prefetch", str(task.prefetch), "--verbosity", "0"]
    options += ["--async", str(task.side_by_side)] if task.side_by_side else []
    options += ["--http", f"127.0.0.1:{task.port}"] if task.watched == "metrics" else []
    execute_from_command_line(["manage.py", "rmq_consume", task.queue, *options])


if __name__ == "__main__":
    main()
