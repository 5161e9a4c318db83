from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [
        ("rmq_retry", "0008_halts"),
    ]

    operations = [
        migrations.AddField(
            model_name="requeuerun",
            name="paced_at",
            field=models.DateTimeField(blank=True, editable=False, null=True),
        ),
        migrations.AddField(
            model_name="requeuerun",
            name="paced_sent",
            field=models.PositiveIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddField(
            model_name="requeuerun",
            name="spared_failed",
            field=models.PositiveIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddField(
            model_name="requeuerun",
            name="spared_processed",
            field=models.PositiveIntegerField(db_default=0, default=0, editable=False),
        ),
    ]
