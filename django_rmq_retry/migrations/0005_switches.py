from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0004_ordering"),
    ]

    operations = [
        migrations.CreateModel(
            name="Meter",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("handler", models.CharField(max_length=255, verbose_name="handler")),
                ("next_at", models.DateTimeField(verbose_name="next run")),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("handler",), name="rmq_meter_once")],
            },
        ),
        migrations.CreateModel(
            name="Switch",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("queue", models.CharField(max_length=255, verbose_name="queue")),
                ("paused", models.BooleanField(default=False, verbose_name="paused")),
                ("by", models.CharField(blank=True, max_length=150, verbose_name="by")),
                ("reason", models.CharField(blank=True, max_length=255, verbose_name="reason")),
                ("since", models.DateTimeField(blank=True, null=True, verbose_name="since")),
                ("until", models.DateTimeField(blank=True, null=True, verbose_name="goes on by itself")),
                ("tripped", models.BooleanField(default=False, verbose_name="opened by its breaker")),
                ("handler", models.CharField(blank=True, max_length=255, verbose_name="handler")),
                ("kind", models.CharField(blank=True, max_length=255, verbose_name="error")),
                ("cause", models.CharField(blank=True, max_length=600, verbose_name="cause")),
                ("tripped_at", models.DateTimeField(blank=True, null=True, verbose_name="opened at")),
                ("failed", models.PositiveIntegerField(default=0, verbose_name="failed probes")),
                ("probe_at", models.DateTimeField(blank=True, null=True, verbose_name="next probe")),
                ("prober", models.CharField(blank=True, max_length=150, verbose_name="probed by")),
                ("probe_until", models.DateTimeField(blank=True, null=True, verbose_name="probed until")),
            ],
            options={
                "verbose_name": "queue switch",
                "verbose_name_plural": "queue switches",
                "permissions": (("pause_queue", "Can pause and resume queues"),),
                "default_permissions": ("view",),
                "constraints": [models.UniqueConstraint(fields=("queue",), name="rmq_switch_once")],
            },
        ),
    ]
