"""The nonce of a strict policy, as Django's own middleware makes it."""

from typing import Any

import pytest
from django.template import Context, Template

TAG = Template("{% load rmq_retry %}<link{% rmq_nonce %}>")


def test_an_unread_lazy_csp_nonce_is_still_written() -> None:
    csp: Any = pytest.importorskip("django.utils.csp", reason="Django makes none before 6.0")
    nonce = csp.LazyNonce()
    written = TAG.render(Context({"csp_nonce": nonce}))

    assert written == f'<link nonce="{nonce}">'
    assert len(str(nonce)) > 10


@pytest.mark.parametrize("context", [{}, {"csp_nonce": None}, {"request": object()}])
def test_without_a_csp_no_nonce_is_written(context: dict[str, Any]) -> None:
    assert TAG.render(Context(context)) == "<link>"
