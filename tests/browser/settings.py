"""Settings of the site: a database in a file, and a policy that allows no inline code."""

import importlib.util
import os
import threading
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from tests.settings import INSTALLED_APPS as APPS
from tests.settings import MIDDLEWARE as BETWEEN
from tests.settings import PASSWORD_HASHERS, SECRET_KEY, USE_TZ
from tests.settings import TEMPLATES as PLAIN

__all__ = ["PASSWORD_HASHERS", "SECRET_KEY", "USE_TZ"]

ROOT_URLCONF = "tests.urls"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
STATIC_URL = "/static/"
TIME_ZONE = "UTC"
THEME = os.environ.get("RMQ_BROWSER_THEME", "")
"""An app whose templates take the place of the admin's; empty for Django's own."""
INSTALLED_APPS = [*([THEME] if THEME else []), *APPS, "django.contrib.staticfiles"]
NONCES = importlib.util.find_spec("django.middleware.csp") is not None
"""True if this Django creates nonces; the admin's own files have them from 6.1 on."""
MIDDLEWARE = [
    "tests.browser.settings.strict",
    *(["django.middleware.csp.ContentSecurityPolicyMiddleware"] if NONCES else []),
    *BETWEEN,
    "django.middleware.locale.LocaleMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
]
TEMPLATES = [
    {
        **PLAIN[0],
        "OPTIONS": {
            "context_processors": [
                *PLAIN[0]["OPTIONS"]["context_processors"],  # type: ignore[index]  # a dict of strings and lists
                *(["django.template.context_processors.csp"] if NONCES else []),
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.path.join(os.environ.get("RMQ_BROWSER_FOLDER", "."), "browser.sqlite3"),  # noqa: PTH118
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
RMQ_RETRY = {
    "URL": "amqp://guest:guest@127.0.0.1:1/",
    "OPERATORS": {
        "ENVIRONMENT": "PRODUCTION",
        "CONTACT": "payments-oncall",
        "EDITABLE": {"payment.*": True},
        "ERROR_LABELS": {"GatewayTimeout": "The bank did not answer in time. The payment was not sent."},
    },
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; connect-src 'self'"
)


BY_NONCE = (
    *("default-src 'none'", "script-src {nonce}", "style-src {nonce}", "img-src 'self'", "form-action 'self'"),
    "connect-src 'self'",
)
asked = threading.local()
"""The state of the broker for requests in this thread: "" or "away"."""


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """The strictest policy that pages with files of their own can live under; or one that goes by nonces alone."""

    def answered(request: HttpRequest) -> HttpResponse:
        asked.broker = request.COOKIES.get("broker", "")
        response = get_response(request)
        nonce = getattr(request, "_csp_nonce", "")
        by_nonce = "; ".join(BY_NONCE).replace("{nonce}", f"'nonce-{nonce}'")
        # A theme has inline code of its own, which would be blocked.
        header = "Content-Security-Policy-Report-Only" if THEME else "Content-Security-Policy"
        response.headers[header] = by_nonce if request.COOKIES.get("policy") == "nonce" else POLICY
        return response

    return answered
