"""Our consumer in a Django project, with everything that a message goes through in the product."""

import os
import sys
import time

import django

from tests.bench.task import Task


def main() -> int:
    os.environ["DJANGO_SETTINGS_MODULE"] = "tests.bench.project.settings"
    django.setup()
    # Models and settings may be imported only now.
    from django_rmq_retry import announcing, consuming, registry, wiring  # noqa: PLC0415
    from django_rmq_retry.runtime.consumer import Limits  # noqa: PLC0415
    from django_rmq_retry.runtime.events import Events  # noqa: PLC0415
    from django_rmq_retry.runtime.shutdown import listen  # noqa: PLC0415

    task = Task.given()
    events = Events(time.monotonic, announcing.observers())
    consumer = consuming.consumer(
        registry.intakes(), events, threads=task.threads, prefetch=task.prefetch, limits=Limits()
    )
    listen(consumer.stop)
    code = consumer.run()
    wiring.close()
    return code


if __name__ == "__main__":
    sys.exit(main())
