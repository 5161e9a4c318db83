import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0003_inbox"),
    ]

    operations = [
        migrations.CreateModel(
            name="BlockedKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("handler", models.CharField(max_length=255, verbose_name="handler")),
                ("key", models.CharField(max_length=255, verbose_name="key")),
                ("digest", models.CharField(editable=False, max_length=64)),
                ("queue", models.CharField(max_length=255, verbose_name="queue")),
                ("blocker", models.CharField(max_length=255, verbose_name="goes first")),
                ("name", models.CharField(editable=False, max_length=64)),
                ("identity", models.CharField(editable=False, max_length=160)),
                ("parked", models.BooleanField(default=False, verbose_name="parked")),
                ("since", models.DateTimeField(verbose_name="since")),
                ("held", models.PositiveIntegerField(default=0, verbose_name="waiting behind it")),
            ],
            options={
                "verbose_name": "blocked key",
                "verbose_name_plural": "blocked keys",
                "permissions": (("release_blockedkey", "Can let go on what waits behind a failed message"),),
                "default_permissions": ("view",),
                "indexes": [
                    models.Index(fields=["identity"], name="rmq_blocked_by"),
                    models.Index(fields=["queue", "since"], name="rmq_blocked_queue"),
                ],
                "constraints": [models.UniqueConstraint(fields=("digest",), name="rmq_blocked_once")],
            },
        ),
        migrations.CreateModel(
            name="HeldMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("shown", models.CharField(max_length=255, verbose_name="message")),
                ("name", models.CharField(editable=False, max_length=64)),
                ("identity", models.CharField(editable=False, max_length=160)),
                ("digest", models.CharField(editable=False, max_length=64)),
                ("exchange", models.CharField(blank=True, max_length=255, verbose_name="exchange")),
                ("routing_key", models.CharField(blank=True, max_length=255, verbose_name="routing key")),
                ("body", models.BinaryField(verbose_name="body")),
                ("properties", models.BinaryField(verbose_name="properties")),
                ("held_at", models.DateTimeField(verbose_name="held")),
                (
                    "block",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.PROTECT,
                        related_name="messages",
                        to="rmq_retry.blockedkey",
                    ),
                ),
            ],
            options={
                "verbose_name": "held message",
                "verbose_name_plural": "held messages",
                "default_permissions": (),
                "indexes": [models.Index(fields=["block", "id"], name="rmq_held_next")],
                "constraints": [models.UniqueConstraint(fields=("block", "digest"), name="rmq_held_once")],
            },
        ),
    ]
