"""A handler whose result was never run has failed."""

import pytest

from tests.aftermath.conftest import Project, Send, parked, rows
from tests.tooling.marks import NIGHTLY_ON_SQLITE, nightly_but

pytestmark = [pytest.mark.database, *NIGHTLY_ON_SQLITE]


@pytest.mark.parametrize(
    "to", [pytest.param("plain", marks=pytest.mark.nightly), "once", pytest.param("async", marks=pytest.mark.nightly)]
)
@pytest.mark.parametrize(
    ("result", "advice"),
    nightly_but(
        [("coroutine", "await")], [("coroutine", "await"), ("generator", "yield"), ("async generator", "yield")]
    ),
)
def test_a_result_that_was_never_run_is_a_failure(
    project: Project, send: Send, to: str, result: str, advice: str
) -> None:
    send(1, to=to, do=result)
    send(2, to=to)
    ended = project.run("rmq_consume", "--burst")

    assert (ended.returncode, rows()) == (0, ["2"]), ended.stderr
    (error,) = parked()
    assert f"{result}, so the code in it has not run" in error
    assert advice in error
    assert "never awaited" not in ended.stderr
