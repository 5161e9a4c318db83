"""Alerts: a mail or a webhook request tells what is wrong when it begins, when it gets worse, and when it is over."""
