"""Plans as people and programs read them."""

from collections.abc import Iterator

from django_rmq_retry.broker.holding import LAG
from django_rmq_retry.broker.plans import Item, Plan, State, shown
from django_rmq_retry.core.declarations import BindingDeclaration, ExchangeDeclaration, QueueDeclaration
from django_rmq_retry.management.base import RmqCommand

WATCHING = f"Looking for {LAG:g} s whether a message is still under way: the management API is that far behind."
SIGNS = {
    State.CREATE: "+",
    State.SAME: "=",
    State.DIFFERS: "!",
    State.MISSING: "!",
    State.REFUSED: "!",
    State.UNSEEN: "?",
    State.LEFT: "!",
}
STYLES = {"+": "SUCCESS", "!": "ERROR", "?": "NOTICE", "=": ""}
_WORDS = {
    State.SAME: "unchanged",
    State.DIFFERS: "differs",
    State.MISSING: "missing",
    State.REFUSED: "refused",
    State.UNSEEN: "not visible",
    State.LEFT: "left of a move",
}


def show_plan(command: RmqCommand, plan: Plan) -> None:
    """One line for each item: its sign, kind, name and what there is to say."""
    rows = [(f"  {SIGNS[item.state]}", item.kind, item.name, _detail(item)) for item in plan.items]
    command.table(rows, [STYLES[SIGNS[item.state]] for item in plan.items])


def summary(plan: Plan, *, done: bool) -> str:
    """``1 created, 8 unchanged, 1 differs.``"""
    counts = plan.counts
    words = {State.CREATE: "created" if done else "to create", **_WORDS}
    said = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{', '.join(said) or 'Nothing to declare'}."


def plan_as_data(plan: Plan) -> Iterator[dict[str, object]]:
    for item in plan.items:
        yield {
            "kind": item.kind,
            "name": item.name,
            "state": item.state.value,
            "differences": [
                {"argument": one.argument, "here": one.here, "broker": one.broker if one.told else "unknown"}
                for one in item.differences
            ],
            "problem": item.problem,
        }


def _detail(item: Item) -> str:
    if item.said:
        return item.said
    declaration = item.declaration
    if isinstance(declaration, ExchangeDeclaration):
        words = [declaration.type, "durable" if declaration.durable else "transient"]
        return " ".join([*words, *(["existing"] if declaration.existing else [])])
    if isinstance(declaration, QueueDeclaration):
        kind = declaration.arguments.get("x-queue-type", "")
        ttl = declaration.arguments.get("x-message-ttl")
        words = [declaration.role.value, str(kind), "existing" if declaration.existing else ""]
        return " ".join(word for word in (*words, f"ttl {ttl} ms" if ttl else "") if word)
    return _arguments(declaration)


def _arguments(binding: BindingDeclaration) -> str:
    return ", ".join(f"{name}={shown(value)}" for name, value in binding.arguments.items())
