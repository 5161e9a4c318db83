"""What the broker says as it ends a subscription, and whether subscribing again makes sense."""

from pika.exceptions import ChannelClosedByBroker

ACCESS_REFUSED, NOT_FOUND = 403, 404


def hopeless(reason: BaseException | str, *, granted: bool) -> tuple[str, str] | None:
    """What is wrong and what to do, where subscribing again would change nothing; None where it may."""
    if not isinstance(reason, ChannelClosedByBroker) or granted:
        return None
    text = reason.reply_text
    if reason.reply_code == NOT_FOUND and not ("home node" in text or "timeout" in text):
        return "it does not exist", "Declare it with `manage.py rmq_declare`."
    if reason.reply_code == ACCESS_REFUSED and "exclusive" not in text:
        return f"the broker says {text}", "Give the user the right to read it."
    return None


def words(reason: BaseException | str) -> str:
    if isinstance(reason, ChannelClosedByBroker):
        return f"the broker closed the channel ({reason.reply_code} {reason.reply_text})"
    return str(reason)
