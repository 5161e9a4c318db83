"""The project that the browser looks at: a database in a file, a policy that allows nothing inline."""

import os
from collections.abc import Callable

from django.http import HttpRequest, HttpResponse

from tests.settings import INSTALLED_APPS as APPS
from tests.settings import MIDDLEWARE as BETWEEN
from tests.settings import SECRET_KEY, TEMPLATES, USE_TZ

__all__ = ["SECRET_KEY", "TEMPLATES", "USE_TZ"]

ROOT_URLCONF = "tests.urls"
DEBUG = False
ALLOWED_HOSTS = ["127.0.0.1"]
STATIC_URL = "/static/"
TIME_ZONE = "UTC"
INSTALLED_APPS = [*APPS, "django.contrib.staticfiles"]
MIDDLEWARE = ["tests.browser.settings.strict", *BETWEEN, "django.middleware.csrf.CsrfViewMiddleware"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": os.path.join(os.environ.get("RMQ_BROWSER_FOLDER", "."), "browser.sqlite3"),  # noqa: PTH118
        "OPTIONS": {"timeout": 30, "transaction_mode": "IMMEDIATE"},
    }
}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
RMQ_RETRY = {
    "URL": "amqp://guest:guest@127.0.0.1:1/",
    "ENVIRONMENT": "PRODUCTION",
    "CONTACT": "payments-oncall",
    "EDITABLE": {"payment.*": True},
    "PLAIN_WORDS": {"GatewayTimeout": "The bank did not answer in time. The payment was not sent."},
}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; connect-src 'self'"
)


def strict(get_response: Callable[[HttpRequest], HttpResponse]) -> Callable[[HttpRequest], HttpResponse]:
    """The strictest policy that pages with files of their own can live under."""

    def answered(request: HttpRequest) -> HttpResponse:
        response = get_response(request)
        response.headers["Content-Security-Policy"] = POLICY
        return response

    return answered
