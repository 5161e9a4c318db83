"""Lists of keys, pasted by an operator."""

from typing import Any
from urllib.parse import urlencode

from django.test import Client

from django_rmq_retry.models import ParkedMessage

ADMIN = "/admin/rmq_retry/"
KEYS, LIST, PREVIEW = f"{ADMIN}parkedmessage/keys/", f"{ADMIN}parkedmessage/", f"{ADMIN}requeuerun/preview/"
FORM = "application/x-www-form-urlencoded"
"""As browsers send what is typed."""


def pasted(client: Client, text: str, **more: str) -> Any:
    return client.post(KEYS, urlencode({"keys": text, **more}), content_type=FORM, follow=True)


def state(key: str) -> str:
    return ParkedMessage.objects.get(business_key=key).state


def previewed(client: Client, page: str = PREVIEW, **words: int) -> Any:
    return client.get(page, words, follow=True)
