import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0005_switches"),
    ]

    operations = [
        migrations.CreateModel(
            name="KeyList",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("created_at", models.DateTimeField(verbose_name="created")),
                ("by", models.CharField(max_length=150, verbose_name="by")),
                ("by_key", models.CharField(blank=True, max_length=64, verbose_name="account")),
                ("count", models.PositiveIntegerField()),
                ("kept", models.BooleanField(default=False)),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["kept", "created_at"], name="rmq_keylist_kept")],
            },
        ),
        migrations.CreateModel(
            name="ListedKey",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("place", models.PositiveIntegerField()),
                ("value", models.CharField(max_length=255, verbose_name="business key")),
                ("message", models.PositiveBigIntegerField(null=True)),
                (
                    "list",
                    models.ForeignKey(
                        db_index=False,
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="keys",
                        to="rmq_retry.keylist",
                    ),
                ),
            ],
            options={
                "default_permissions": (),
                "indexes": [models.Index(fields=["list", "value"], name="rmq_listed_value")],
                "constraints": [models.UniqueConstraint(fields=("list", "place", "message"), name="rmq_listed_once")],
            },
        ),
    ]
