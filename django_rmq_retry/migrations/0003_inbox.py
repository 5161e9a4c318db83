from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0002_outbox"),
    ]

    operations = [
        migrations.CreateModel(
            name="InboxEntry",
            fields=[
                ("key", models.UUIDField(primary_key=True, serialize=False)),
                ("handler", models.CharField(max_length=255, verbose_name="handler")),
                ("name", models.CharField(max_length=255, verbose_name="message")),
                ("digest", models.UUIDField()),
                ("handled_at", models.DateTimeField(verbose_name="handled")),
            ],
            options={
                "verbose_name": "handled message",
                "verbose_name_plural": "handled messages",
                "default_permissions": (),
                "indexes": [models.Index(fields=["handled_at"], name="rmq_inbox_handled")],
            },
        ),
    ]
