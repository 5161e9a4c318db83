from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0006_keylists"),
    ]

    operations = [
        migrations.CreateModel(
            name="Declared",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("digest", models.CharField(editable=False, max_length=64)),
                ("project", models.CharField(max_length=255)),
                ("broker", models.CharField(max_length=255)),
                ("vhost", models.CharField(max_length=255)),
                ("kind", models.CharField(max_length=8)),
                ("name", models.CharField(max_length=255)),
                ("role", models.CharField(blank=True, max_length=16)),
                ("home", models.CharField(blank=True, max_length=255)),
                ("arguments", models.JSONField(default=dict)),
                ("bindings", models.JSONField(default=list)),
                ("first_at", models.DateTimeField()),
                ("last_at", models.DateTimeField()),
                ("version", models.CharField(blank=True, max_length=32)),
            ],
            options={
                "default_permissions": (),
                "constraints": [models.UniqueConstraint(fields=("digest",), name="rmq_declared_once")],
            },
        ),
    ]
