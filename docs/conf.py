"""Sphinx configuration of the documentation: ``make docs``; warnings are errors."""

import re
import sys
from pathlib import Path

import django
from django.conf import settings
from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.search.en import SearchEnglish
from sphinx.writers.html5 import HTML5Translator

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.tooling import commands

INIT = Path(__file__).parents[1] / "django_rmq_retry" / "__init__.py"
WORD = 30
"""A longer name may break in a cell of a table."""
DRAWN = re.compile(r"[─│┌┐└┘├┤┬┴┼▶◀▲▼]")
DENSE = 4
"""A table with more columns than these has smaller letters."""
PHONE, GAP, PROSE = 44, 3, 26
"""In characters: the width of a phone, the gap between columns, and the least width for a last column of prose."""

project = "django-rmq-retry"
copyright = "django-rmq-retry contributors"
release = re.findall(r'__version__ = "(.+)"', INIT.read_text())[0]
version = release

# What a reader searches for, and the page that answers it: the search has no other notion of what a page is about.
# An answer in a section of a page has the section's anchor. scorer.js finds the words in any order.
ANSWERS = {
    "admin": ("admin", "body failed message", "dead letter admin", "failed message"),
    "admin-site": ("content security policy", "csp"),
    "alerts": ("alert", "alert parked message", "alert mail", "notification", "slack", "webhook"),
    "asyncapi": ("asyncapi", "schema for other teams"),
    "async": ("async handler", "asyncio", "concurrent http calls"),
    "audit": ("audit log", "who did", "who discarded message", "who edited", "who requeued"),
    "backups": ("backup", "disaster recovery", "lost broker", "restore"),
    "batches": ("batch", "batch insert", "bulk insert", "bulk_create", "import rows"),
    "breakers": ("breaker", "circuit breaker", "service down"),
    "broadcast": (
        *("broadcast", "event two services", "fanout", "many services", "publish subscribe", "pubsub", "same event"),
        "several services",
    ),
    "business-keys": ("business key", "error group", "find by number", "fingerprint", "group by", "payment number"),
    "carriers": ("backoff", "dead letter", "ladder", "waiting queue", "ttl"),
    "celery": ("celery", "celery beat", "migrate from celery"),
    "celery-features": (
        *("acks_late", "apply_async", "autoretry_for", "chain", "chord", "delay_on_commit", "flower", "group"),
        *("celery once", "max_tasks_per_child", "result backend", "retry_kwargs", "task lock", "task_always_eager"),
        *("unique task",),
        *("worker_max_memory_per_child", "worker_max_tasks_per_child"),
    ),
    "celery-queue": ("celery message", "celery queue", "read celery"),
    "change-queues": (
        *("406", "change queue", "delete queue", "inequivalent arg", "move queue", "precondition failed"),
        *("precondition_failed", "purge queue", "recreate queue", "rename queue"),
    ),
    "check": ("check script", "smoke test"),
    "codecs": (
        *("codec", "compress", "decrypt", "encrypt", "encrypt payload", "encryption", "gzip"),
        *("messagepack", "msgpack", "protobuf"),
    ),
    "compare": ("alternative", "compare", "dramatiq", "faststream", "procrastinate"),
    "consumers": ("hanging worker", "stuck worker", "worker list"),
    "cron": (
        "beat schedule",
        "cron",
        "every hour",
        "every night",
        "nightly job",
        "periodic task",
        "recurring",
        "scheduler",
    ),
    "database-down": (
        "database away",
        "database down",
        "database outage",
        "database unavailable",
        "postgres down",
        "postgresql away",
        "postgresql down",
    ),
    "dead-letter-loop": (
        *("count x death", "dead letter loop", "existing loop", "hand written consumer", "old new consumer"),
        *("own retry queue", "pika", "replace pika", "retry queue delay", "several retry queue", "ttl retry queue"),
        *("x death", "x retries"),
    ),
    "deadlines": (
        *("consumer_timeout", "deadline", "handler timeout", "hanging handler", "takes too long", "time limit"),
        "timeout",
    ),
    "demo": ("demo", "try it"),
    "deploy": (
        *("consume only one queue", "docker", "graceful shutdown", "max memory", "memory grows", "memory leak"),
        *("collectstatic", "gunicorn", "nginx", "production", "sigterm", "static files", "supervisor", "systemd"),
    ),
    "doctor": ("diagnose", "doctor", "health check"),
    "editing": ("correct message", "edit", "edit message", "fix message"),
    "embedded": ("embedded broker", "without rabbitmq"),
    "exit-codes": ("exit code", "exit status"),
    "faq": ("production ready", "saga", "uninstall"),
    "faq#how-do-i": ("big message", "large message", "maximum message size", "message size", "payload size"),
    "four-eyes": ("approval", "four eyes", "second person"),
    "guarantees": (
        *("at least once", "guarantee", "lose messages", "lose tasks", "oom", "out of memory", "poison message"),
        *("worker dies", "worker killed"),
    ),
    "hosted": ("amazon mq", "cloudamqp", "heroku", "hosted rabbitmq", "procfile"),
    "incident": ("outage requeue", "requeue except", "requeue all but"),
    "install": ("django version", "install", "pip install", "python version", "rabbitmq version", "supported version"),
    "kubernetes": ("helm", "k8s", "kubernetes", "kubernetes manifest"),
    "logging": ("json log", "log", "logging", "structlog"),
    "monitoring": (
        *("autoscale", "autoscaling", "dashboard", "grafana", "keda", "liveness probe", "metrics", "monitoring"),
        *("prometheus", "readiness probe"),
    ),
    "never-runs": (
        *("handler never runs", "handler not called", "handler not running", "message not consumed"),
        *("message not processed", "message stuck", "nothing happens", "restart code change", "troubleshooting"),
    ),
    "once#messages-without-an-id": ("missing message_id", "no message id", "no message_id", "without message id"),
    "once": (
        *("charged twice", "deduplicate", "duplicate", "exactly once", "handled twice", "idempotency", "idempotent"),
        *("ignore duplicate", "inbox", "runs twice"),
    ),
    "order": ("fifo", "order", "order survives retry", "ordering", "ordering key", "sequential"),
    "outbox": ("multiple databases", "outbox", "rabbitmq down", "transaction", "transaction on_commit"),
    "partitions": ("delete old attempts", "partition"),
    "pausing": ("pause", "pause queue", "resume queue"),
    "permissions": ("permission", "rabbitmq user permission", "role", "view_payload", "who may see"),
    "personal-data": ("delete customer data", "erase", "gdpr", "personal data", "privacy"),
    "personal-data#hide-card-numbers-from-support": (
        *("card numbers", "credit card", "hide body support", "hide card numbers", "mask card number", "pci"),
        *("support see body",),
    ),
    "policies": (
        *("attempts", "backoff jitter", "exponential backoff", "fire and forget", "max retries", "policy", "retry"),
        *("retry backoff", "retry only timeouts", "stop retrying"),
    ),
    "priorities": ("max_priority", "priority", "urgent message"),
    "publishing#from-java-or-another-language": ("java", "non django", "other language", "publish from java"),
    "publishing#calls": ("get result", "result", "return value", "rpc", "wait for answer"),
    "publishing#to-a-handler": ("delay", "delay message", "delay minutes", "delayed message"),
    "publishing": (
        *("at a time", "countdown", "eta", "publish"),
        *("publish many", "schedule message", "send message later"),
    ),
    "rates": ("limit requests", "per second", "rate", "rate limit", "throttle"),
    "recipes": ("cookbook", "examples", "recipe"),
    "recipes#cancel-a-delayed-message": ("cancel delayed message", "cancel message", "cancel task", "revoke"),
    "recipes#debug-a-parked-message-on-your-machine": ("debug parked message", "export import message", "reproduce"),
    "recipes#requeue-at-2-am": ("at night", "requeue later", "requeue 2 am", "schedule requeue", "requeue tonight"),
    "recipes#empty-the-queues-and-exit": ("burst", "run once and exit"),
    "recipes#skip-a-message-that-is-out-of-date": ("discard old message", "skip message", "stale message"),
    "records": ("data retention", "how long kept", "keep failed messages", "retention"),
    "records#how-big-the-tables-get": ("disk space", "how big", "table size", "tables"),
    "requeue-runs": ("back pressure", "canary", "pause requeue", "requeue run", "requeue twice"),
    "requeueing#find-the-messages": ("failed at night", "failed last night", "what failed"),
    "requeueing#from-code": ("requeue code", "requeue from python"),
    "requeueing": (
        *("discard", "hold", "parked", "parked message", "replay", "requeue", "requeue id"),
        *("requeue list", "requeue list ids", "resend", "send again", "send again list"),
    ),
    "runbook": ("connection refused", "incident", "on call", "runbook"),
    "scaling": (
        *(
            "basic_qos",
            "cluster",
            "how many consumers",
            "how many threads",
            "how many workers",
            "pgbouncer",
            "prefetch",
            "prefetch_count",
        ),
        *("scale", "scaling", "threads"),
    ),
    "send-waiting": ("retry now", "send retries now", "skip wait", "waiting retries"),
    "sentry": ("error tracking", "sentry"),
    "settings#the-url": (
        *("change password", "credentials", "password rotation", "password rotation rabbitmq", "rotate password"),
    ),
    "settings": ("configuration", "mask", "setting", "settings", "tls"),
    "signals": ("signal",),
    "speed": ("benchmark", "performance", "speed", "throughput"),
    "take-over": ("existing queue", "existing topology"),
    "tasks": ("django tasks", "task backend"),
    "testing": ("mock", "pytest", "test", "test handler", "unit test", "unit test handler"),
    "topology": ("declare", "exchange", "queue", "topology"),
    "tracing": ("jaeger", "opentelemetry", "trace", "tracing"),
    "tutorial": ("getting started", "tutorial"),
    "two-services": ("correlation id", "microservices", "reply", "reply queue"),
    "typed": ("dataclass", "message schema", "message version", "pydantic", "typed message", "validate"),
    "untrusted": ("malicious", "partner publisher", "security model", "untrusted", "untrusted publisher"),
    "upgrading": (
        *(
            "deploy without downtime",
            "deploy without losing messages",
            "messages during a deploy",
            "rolling update",
            "upgrade",
        ),
        *("zero downtime",),
    ),
    "upgrading#going-back": ("back to the old", "downgrade", "going back", "roll back old"),
    "virtual-hosts": ("multiple brokers", "second broker", "shared broker", "two brokers", "vhost", "virtual host"),
}

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx_copybutton", "sphinxext.opengraph"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4

# The reference of the public API is read from docstrings; the modules behind it define models.
settings.configure(INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "django_rmq_retry"])
django.setup()
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 88
# The types in signatures are text. Links between pages are still checked.
nitpick_ignore_regex = [("py:.*", ".*")]

exclude_patterns = ["_build"]

# A block without a language has commands: the colours of Python would make keywords of their options.
highlight_language = "none"
nitpicky = True

# Two hyphens, such as those of --yes, do not become a dash.
smartquotes_action = "qe"

html_theme = "furo"
# The theme's own choice underlines the names of classes, as if they were links.
pygments_dark_style = "github-dark"
html_title = project
html_baseurl = "https://django-rmq-retry.readthedocs.io/en/latest/"
html_show_sourcelink = False
html_copy_source = False
html_domain_indices = False
templates_path = ["_templates"]
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_favicon = "_static/favicon.svg"
html_search_scorer = str(Path(__file__).parent / "_static" / "scorer.js")
NAMES = {"color-api-name": "var(--color-foreground-primary)", "color-api-pre-name": "var(--color-foreground-muted)"}
"""The names of the API, which the theme has in the red of an error."""
html_theme_options = {
    "light_logo": "logo-light.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {"color-brand-primary": "#0b6b63", "color-brand-content": "#0b6b63", **NAMES},
    "dark_css_variables": {"color-brand-primary": "#4fd1c0", "color-brand-content": "#4fd1c0", **NAMES},
}

# The card is drawn in _static/card.svg; programs that show links want a PNG.
ogp_site_url = html_baseurl
ogp_site_name = project
ogp_image = "_static/card.png"
ogp_image_alt = "django-rmq-retry: RabbitMQ messages in Django, retried and parked"
ogp_description_length = 200
ogp_social_cards = {"enable": False}
ogp_custom_meta_tags = ('<meta name="twitter:card" content="summary_large_image">',)

copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True
copybutton_selector = "div:not(.drawn) > div.highlight > pre"


class WithoutTestNames(SearchEnglish):
    """The search of English texts, without the names of tests, which contain every word of the subject."""

    def word_filter(self, word: str) -> bool:
        """Keep a word in the index unless it names a test."""
        return not word.startswith("test_") and super().word_filter(word)


def mark(app: Sphinx, doctree: nodes.document) -> None:  # noqa: ARG001 - the event's signature
    """Mark what site.css or the copy button treats in its own way.

    A block that holds a drawing made of characters is not copied, and its lines do not wrap. Long names may break.
    """
    for block in doctree.findall(nodes.literal_block):
        if DRAWN.search(block.astext()):
            block["classes"].append("drawn")
    for name in doctree.findall(nodes.literal):
        if name.astext().startswith("test_"):
            name["classes"].append("test-name")
        elif len(name.astext()) > WORD:
            name["classes"].append("long")


def stack(app: Sphinx, doctree: nodes.document) -> None:  # noqa: ARG001 - the event's signature
    """Give each cell the heading of its column; a table too wide for a phone is shown there as one block a row."""
    for table in doctree.findall(nodes.table):
        rows = [[cell.astext() for cell in row.findall(nodes.entry)] for row in table.findall(nodes.row)]
        *columns, last = [max(map(len, column)) for column in zip(*rows, strict=True)]
        if sum(columns) + min(last, PROSE) + GAP * len(columns) > PHONE:
            table["classes"].append("stacked")
        if len(columns) >= DENSE:
            table["classes"].append("dense")
        for body in table.findall(nodes.tbody):
            for row in body.findall(nodes.row):
                for heading, cell in zip(rows[0], row.findall(nodes.entry), strict=True):
                    cell["heading"] = heading if heading.endswith("?") or not heading else f"{heading}:"
                    if not cell.astext().strip():
                        cell["classes"].append("empty")


class WithHeadings(HTML5Translator):
    """Writes the heading of its column into each cell."""

    def visit_entry(self, node: nodes.entry) -> None:
        """Add the heading to the tag that was just written."""
        super().visit_entry(node)
        if heading := node.get("heading"):
            self.body[-1] = self.body[-1].replace("<td", f'<td data-heading="{self.attval(heading)}"', 1)


def answer(app: Sphinx, doctree: nodes.document) -> None:
    """Enter a page or a section under the words that it answers; the search puts it first."""
    name = Path(app.env.docname).name
    places = {"": doctree, **{anchor: part for part in doctree.findall(nodes.section) for anchor in part["ids"]}}
    for key, words in ANSWERS.items():
        file, _, anchor = key.partition("#")
        if file == name:
            places[anchor].insert(0, addnodes.index(entries=[("single", word, anchor, "main", None) for word in words]))


def add_commands(app: Sphinx, name: str, source: list[str]) -> None:  # noqa: ARG001 - the event's signature
    """Add to the page of commands what their parsers say."""
    if name == "reference/commands":
        source[0] += commands.page()


def setup(app: Sphinx) -> None:
    """Add to Sphinx what it has no option for."""
    pages = {path.stem for path in Path(app.srcdir).rglob("*.md")}
    if gone := {key.partition("#")[0] for key in ANSWERS} - pages:
        raise ValueError(f"ANSWERS names pages that do not exist: {', '.join(sorted(gone))}")
    app.add_search_language(WithoutTestNames)
    app.set_translator("html", WithHeadings)
    app.connect("source-read", add_commands)
    app.connect("doctree-read", mark)
    app.connect("doctree-read", stack)
    app.connect("doctree-read", answer)
