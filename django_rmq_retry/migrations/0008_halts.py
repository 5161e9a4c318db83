from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0007_declared"),
    ]

    operations = [
        migrations.AddField(
            model_name="switch",
            name="halted_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="switch",
            name="halted_attempt",
            field=models.PositiveIntegerField(blank=True, null=True),
        ),
        migrations.AddField(
            model_name="switch",
            name="halted_by",
            field=models.CharField(blank=True, db_default="", default="", max_length=150),
        ),
        migrations.AddField(
            model_name="switch",
            name="halted_error",
            field=models.CharField(blank=True, db_default="", default="", max_length=600),
        ),
        migrations.AddField(
            model_name="switch",
            name="halted_message",
            field=models.CharField(blank=True, db_default="", default="", max_length=255),
        ),
        migrations.AddField(
            model_name="switch",
            name="halted_seen_at",
            field=models.DateTimeField(blank=True, null=True),
        ),
    ]
