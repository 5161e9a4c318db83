"""What a broker has under a name against what is wanted: every argument that differs, without changing anything."""

from dataclasses import replace

from django_rmq_retry.broker.asking import Session
from django_rmq_retry.broker.inspecting import Row
from django_rmq_retry.broker.plans import Difference
from django_rmq_retry.broker.refusing import LOCKED, Refusal
from django_rmq_retry.broker.wording import OWN, Named, declaring, wanted
from django_rmq_retry.core.declarations import QueueDeclaration


def by_trial(session: Session, declaration: Named) -> tuple[Difference, ...]:
    """By declaring what is known to be there, which changes nothing.

    Each refusal names one argument and the broker's value; with that value taken over the next one comes to light.
    """
    here = wanted(declaration)
    trial, found = dict(here), dict[str, Difference]()
    while True:
        try:
            session.ask(declaring(declaration, trial))
        except Refusal as refusal:
            named = _named(refusal)
            if named is None and not found:
                raise
            if named is None or named.argument in found:
                return tuple(found.values())
            found[named.argument] = replace(named, here=here.get(named.argument))
            trial[named.argument] = named.broker
            if not named.told:
                return tuple(found.values())
        else:
            return tuple(found.values())


def by_row(declaration: Named, row: Row) -> tuple[Difference, ...] | None:
    """By what the management API tells; None where only the broker itself can say."""
    here = wanted(declaration)
    there = {**{name: row.get(name, here[name]) for name in OWN if name in here}, **row["arguments"]}
    if isinstance(declaration, QueueDeclaration):
        # Classic is what a queue is without a type; without one of ours the virtual host's default is meant, though.
        if "x-queue-type" not in here and row["type"] != "classic":
            return None
        there["x-queue-type"], here = row["type"], {"x-queue-type": "classic", **here}
    return tuple(
        Difference(argument=name, here=here.get(name), broker=there.get(name))
        for name in dict.fromkeys((*here, *there))
        if here.get(name) != there.get(name)
    )


def _named(refusal: Refusal) -> Difference | None:
    if refusal.code == LOCKED:
        return Difference(argument="exclusive", here=False, broker=True, told=False)
    unequal = refusal.unequal
    if unequal is None:
        return None
    return Difference(argument=unequal.argument, here=None, broker=unequal.value, told=unequal.told)
