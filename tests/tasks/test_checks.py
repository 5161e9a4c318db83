"""Mistakes in TASKS are findings of ``check``: one sentence, with the right form."""

from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.test import override_settings

from django_rmq_retry import Breaker, Fixed, InPlace, OneShot, RetryThenPark, StopTheLine
from django_rmq_retry.checks.settings import check_joining
from django_rmq_retry.tasks import policy
from django_rmq_retry.tasks.api import task_backends
from django_rmq_retry.tasks.policies import MARK
from tests.tasks.conftest import BACKEND, WEEK, Load

pytestmark = pytest.mark.usefixtures("no_handlers")

NOT_A_POLICY = "seven"


def checked() -> list[CheckMessage]:
    """What Django's check of its task backends finds."""
    return [one for backend in task_backends.all() for one in backend.check()]


def found(**tasks: Any) -> dict[str, str]:
    """The texts of the findings about these TASKS, by id."""
    with override_settings(TASKS=tasks):
        return {str(one.id).removeprefix("rmq_retry."): str(one.msg) for one in checked()}


def test_a_right_setting_has_no_finding() -> None:
    options = {"results": WEEK, "policies": {"emails": RetryThenPark()}, "breakers": {}, "timeouts": {"emails": 15}}

    assert found(default={"BACKEND": BACKEND, "QUEUES": ["default", "emails"], "OPTIONS": options}) == {}
    assert found(default={"BACKEND": BACKEND}) == {}


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"QUEUES": "default"}, "TASKS['default']['QUEUES'] takes a list of queue names such as ['default', 'emails']"),
        ({"QUEUES": []}, "TASKS['default']['QUEUES'] takes a list of queue names"),
        ({"QUEUES": 5}, "TASKS['default']['QUEUES'] takes a list of queue names"),
        ({"QUEUES": [None]}, "TASKS['default']['QUEUES'] takes a list of queue names"),
        ({"QUEUES": ["x" * 300]}, "TASKS['default']['QUEUES']: "),
        ({"QUEUE": ["default"]}, "TASKS['default'] has no key 'QUEUE'. Did you mean 'QUEUES'?"),
        ({"OPTIONS": ["results"]}, "TASKS['default']['OPTIONS'] takes a dict such as {'results': timedelta(days=7)}"),
        ({"OPTIONS": {"result": WEEK}}, "TASKS['default']['OPTIONS'] has no key 'result'. Valid keys: breakers, "),
        ({"OPTIONS": {"results": 7}}, "TASKS['default']['OPTIONS']['results'] takes a timedelta such as timedelta"),
        ({"OPTIONS": {"results": -WEEK}}, "TASKS['default']['OPTIONS']['results'] takes a timedelta"),
        ({"OPTIONS": {"policies": []}}, "['policies'] takes a dict such as {'default': 'shop.policies.default'}"),
        (
            {"OPTIONS": {"policies": {"mail": RetryThenPark()}}},
            "names the queue 'mail', which is not in QUEUES",
        ),
        (
            {"OPTIONS": {"policies": {"default": 5}}},
            "['default'] takes RetryThenPark() or another policy, or",
        ),
        ({"OPTIONS": {"policies": {"default": "no.such.policy"}}}, "names 'no.such.policy', which cannot be imported"),
        (
            {"OPTIONS": {"policies": {"default": f"{__name__}.NOT_A_POLICY"}}},
            "['default'] takes RetryThenPark() or another policy",
        ),
        ({"OPTIONS": {"keys": {"default": 5}}}, "['keys']['default'] takes a function or another callable, or "),
        ({"OPTIONS": {"keys": {"default": "no.such.key"}}}, "names 'no.such.key', which cannot be imported"),
        ({"OPTIONS": {"timeouts": 15}}, "['timeouts'] takes a dict such as {'default': 15}"),
        ({"OPTIONS": {"timeouts": {"mail": 15}}}, "names the queue 'mail', which is not in QUEUES"),
        ({"OPTIONS": {"timeouts": {"default": 0}}}, "['default'] takes seconds above 0 and up to ten years, not 0"),
        ({"OPTIONS": {"timeouts": {"default": WEEK}}}, "['default'] takes seconds, not a timedelta"),
        ({"OPTIONS": {"breakers": {"default": True}}}, "['default'] takes Breaker(on=MailDown) or another breaker"),
    ],
)
def test_a_wrong_value_is_one_sentence(wrong: dict[str, Any], text: str) -> None:
    findings = found(default={"BACKEND": BACKEND, **wrong})

    assert list(findings) == ["E070"]
    assert text in findings["E070"]
    assert "\n" not in findings["E070"]


def test_two_backends_need_queues_of_their_own() -> None:
    one = {"BACKEND": BACKEND, "QUEUES": ["default"]}

    assert found(default=one, other=one) == {
        "E071": "TASKS['other'] and TASKS['default'] both have the queue 'default': each message goes to one of them."
    }


def test_a_task_that_its_queue_cannot_retry_is_found(load: Load) -> None:
    work = load()
    vars(work.fail.func)[MARK] = RetryThenPark(via=InPlace(), backoff=Fixed(1))
    vars(work.send.func)[MARK] = StopTheLine()

    try:
        findings = [one for one in checked() if one.id == "rmq_retry.E072"]
    finally:
        del vars(work.fail.func)[MARK], vars(work.send.func)[MARK]

    texts = sorted(str(one.msg) for one in findings)
    assert len(texts) == 2
    assert texts[0].startswith(
        "Task tests.tasks.work.fail has a policy that queue 'default' cannot have: it retries via"
    )


def test_a_queue_that_cannot_have_a_breaker_is_found_by_the_policy_that_the_settings_name(load: Load) -> None:
    load(policies={"default": OneShot()}, breakers={"default": Breaker(on=TimeoutError)})

    [found] = check_joining(app_configs=None)

    assert "with OneShot a caller waits for each answer" in found.msg


def test_a_policy_has_to_fit_the_queue_of_its_task_only(load: Load) -> None:
    load(policies={"emails": RetryThenPark(via=InPlace(), backoff=Fixed(1))})

    assert [one.msg for one in checked() if one.id == "rmq_retry.E072"] == []


def test_results_need_records(load: Load) -> None:
    load(results=timedelta(days=60), settings={"RMQ_RETRY": {"RECORDS": False}})

    ids = {one.id for one in checked()}

    assert {"rmq_retry.E073", "rmq_retry.W070"} <= ids


@pytest.mark.parametrize("given", [None, 5, RetryThenPark, "shop.policies.emails"])
def test_the_decorator_takes_a_policy(given: Any) -> None:
    with pytest.raises(ValueError, match=r"@policy takes a policy such as RetryThenPark\(attempts=10\)"):
        policy(given)


def test_the_decorator_stands_below_task(load: Load) -> None:
    work = load()

    with pytest.raises(ValueError, match="below @task"):
        policy(RetryThenPark())(work.send)
