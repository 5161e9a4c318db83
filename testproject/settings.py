"""The bank's settings, overridden by the environment: DATABASE_URL, RMQ_URL, BANK_…"""

from pathlib import Path

import environ  # type: ignore[import-untyped]  # it has neither stubs nor py.typed

from django_rmq_retry import Queue
from django_rmq_retry.env import rmq_settings

BASE_DIR = Path(__file__).resolve().parent
env = environ.Env()

DEBUG = env.bool("DEBUG", default=True)
SECRET_KEY = env.str("SECRET_KEY", default="a bank to play with, no secret at all")
ALLOWED_HOSTS = env.list("ALLOWED_HOSTS", default=["localhost", "127.0.0.1"])
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "django_rmq_retry",
    "testproject.accounts",
    "testproject.payments",
]
MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
ROOT_URLCONF = "testproject.urls"
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
STATIC_URL = "static/"
USE_TZ = True
TIME_ZONE = env.str("TIME_ZONE", default="UTC")
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

DATABASES = {"default": env.db("DATABASE_URL", default=f"sqlite:///{BASE_DIR / 'bank.sqlite3'}")}
if DATABASES["default"]["ENGINE"].endswith("sqlite3"):
    # Worker threads write concurrently: each transaction takes its lock at the start, and waits for it.
    DATABASES["default"]["OPTIONS"] = {
        "timeout": 20,
        "transaction_mode": "IMMEDIATE",
        "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
    }

DATABASES["default"] |= {"CONN_MAX_AGE": 60, "CONN_HEALTH_CHECKS": True}

RMQ_RETRY = rmq_settings(
    env,
    # Cash withdrawals are answered into a queue of another department.
    TOPOLOGY=[Queue("reply-queue", type=None)],
    REPLY_TO=["reply-queue", "amq.rabbitmq.reply-to.*", "amq.gen-*"],
)

# Seconds before a charge's second attempt, before a withdrawal's next one, and between attempts of a stopped ledger.
BANK_CHARGE_WAIT = env.float("BANK_CHARGE_WAIT", default=10)
BANK_CASH_WAIT = env.float("BANK_CASH_WAIT", default=30)
BANK_LEDGER_WAIT = env.float("BANK_LEDGER_WAIT", default=1)
