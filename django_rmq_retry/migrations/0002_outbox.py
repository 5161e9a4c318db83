from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0001_initial"),
    ]

    operations = [
        migrations.CreateModel(
            name="OutboxMessage",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("message_id", models.CharField(blank=True, max_length=255, verbose_name="message id")),
                ("exchange", models.CharField(blank=True, max_length=255, verbose_name="exchange")),
                ("routing_key", models.CharField(blank=True, max_length=255, verbose_name="routing key")),
                ("mandatory", models.BooleanField(default=True, verbose_name="must reach a queue")),
                ("body", models.BinaryField(verbose_name="body")),
                ("size", models.PositiveIntegerField(default=0, verbose_name="size")),
                ("properties", models.BinaryField(verbose_name="properties")),
                ("order_key", models.CharField(blank=True, max_length=255, verbose_name="order")),
                ("created_at", models.DateTimeField(verbose_name="written")),
                ("due_at", models.DateTimeField(verbose_name="sent after")),
                ("tries", models.PositiveIntegerField(default=0, verbose_name="tries")),
                ("error", models.TextField(blank=True, verbose_name="why it was not sent")),
                ("stuck_at", models.DateTimeField(blank=True, null=True, verbose_name="given up")),
            ],
            options={
                "verbose_name": "message to be published",
                "verbose_name_plural": "messages to be published",
                "default_permissions": ("view",),
                "permissions": (("resend_outboxmessage", "Can send stuck messages of the outbox again"),),
                "indexes": [
                    models.Index(fields=["stuck_at", "due_at", "id"], name="rmq_outbox_due"),
                    models.Index(fields=["order_key", "id"], name="rmq_outbox_order"),
                ],
            },
        ),
    ]
