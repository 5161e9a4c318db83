"""The plan of declarations as text and JSON: what `rmq_declare` would do, and what differs on the broker."""

from collections.abc import Iterator

from django_rmq_retry.management.command import RmqCommand
from django_rmq_retry.topology.declarations import ExchangeDeclaration, QueueDeclaration
from django_rmq_retry.topology.plan import Item, Plan, PlanState, shown

_SIGNS = {
    PlanState.CREATE: "+",
    PlanState.SAME: "=",
    PlanState.DIFFERS: "!",
    PlanState.MISSING: "!",
    PlanState.REFUSED: "!",
    PlanState.UNSEEN: "?",
    PlanState.LEFT: "!",
}
_STYLES = {"+": "SUCCESS", "!": "ERROR", "?": "NOTICE", "=": ""}
_WORDS = {
    PlanState.SAME: "unchanged",
    PlanState.DIFFERS: "differs",
    PlanState.MISSING: "missing",
    PlanState.REFUSED: "refused",
    PlanState.UNSEEN: "not visible",
    PlanState.LEFT: "left by a move",
}


def show_plan(command: RmqCommand, plan: Plan) -> None:
    """Write one line for each item: sign, kind, name and details."""
    rows = [(f"  {_SIGNS[item.state]}", item.kind, item.name, _detail(item)) for item in plan.items]
    command.table(rows, [_STYLES[_SIGNS[item.state]] for item in plan.items])


def summary(plan: Plan, *, done: bool) -> str:
    """Return the counts of a plan: ``1 created, 8 unchanged, 1 differs.``"""
    counts = plan.counts
    words = {PlanState.CREATE: "created" if done else "to create", **_WORDS}
    if counts[PlanState.DIFFERS] > 1:
        words[PlanState.DIFFERS] = "differ"
    text = [f"{counts[state]} {word}" for state, word in words.items() if counts[state]]
    return f"{', '.join(text) or 'Nothing to declare'}."


def plan_as_data(plan: Plan) -> Iterator[dict[str, object]]:
    for item in plan.items:
        differences = [
            {"argument": one.argument, "here": one.here, "broker": one.broker if one.reported else "unknown"}
            for one in item.differences
        ]
        facts = {"kind": item.kind, "name": item.name, "state": item.state.value}
        yield {**facts, "differences": differences, "problem": item.problem}


def _detail(item: Item) -> str:
    if item.text:
        return item.text
    declaration = item.declaration
    if isinstance(declaration, ExchangeDeclaration):
        words = [declaration.type, "durable" if declaration.durable else "transient"]
        return " ".join([*words, *(["existing"] if declaration.existing else [])])
    if isinstance(declaration, QueueDeclaration):
        kind = item.type if declaration.existing else declaration.arguments.get("x-queue-type", "")
        ttl = declaration.arguments.get("x-message-ttl")
        words = [declaration.role.value, str(kind), "existing" if declaration.existing else ""]
        return " ".join(word for word in (*words, f"ttl {ttl} ms" if ttl else "") if word)
    return ", ".join(f"{name}={shown(value)}" for name, value in declaration.arguments.items())
