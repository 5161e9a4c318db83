"""The smallest project that the app can live in."""

import os
from datetime import UTC, datetime

from tests.tooling import databases

SECRET_KEY = "only-for-tests"
USE_TZ = True
TIME_ZONE = ("Asia/Tokyo", "Africa/Lagos", "America/Phoenix")[datetime.now(UTC).hour // 8]
"""Where it is day: pages show an hour of yesterday otherwise than one of today."""
ROOT_URLCONF = "tests.urls"
DATABASES = {"default": databases.settings()}
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django_rmq_retry",
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
"""Not one that costs a fifth of a second for each password."""
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
RMQ_RETRY = {"URL": os.environ.get("RMQ_TEST_URL", "amqp://guest:guest@127.0.0.1:5672/%2F")}
