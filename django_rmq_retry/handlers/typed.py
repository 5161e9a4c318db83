"""The type that a handler's annotation names, as in ``message: Delivery[Payment]``, and the codec that follows.

msgspec converts dataclasses, TypedDicts, its own Structs and plain types; pydantic whatever contains one of its models.
Both are optional, and are imported only for a handler that names such a type.
"""

import dataclasses
import importlib
import inspect
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from decimal import Decimal
from functools import partial
from types import ModuleType
from typing import Annotated, Any, get_args, get_origin, get_type_hints, is_typeddict

from django_rmq_retry.errors import ConfigurationError, ExtraMissing, Misfit
from django_rmq_retry.handlers.call import signature_of
from django_rmq_retry.messages.celery_tasks import CeleryCall, CeleryTask
from django_rmq_retry.messages.codecs import MAGNITUDE_LIMIT, Codec, Fit, Raw, Typed
from django_rmq_retry.messages.message import Delivery
from django_rmq_retry.messages.texts import short

MOST_PROBLEMS = 10
PROBLEM_BYTES = 200
OWN_DATA: dict[type, type] = {Raw: bytes, CeleryTask: CeleryCall}
"""The codecs whose data have a type already."""
NAMES_DELIVERY = re.compile(r"\bDelivery\s*\[")
LISTS = (list, Sequence, Iterable, Collection)
KINDS = "a dataclass, a TypedDict, a msgspec.Struct or a pydantic model"

_AT = re.compile(r"(?P<problem>.*) - at (?:`key` in )?`(?P<path>\$.*)`", re.DOTALL)
_FIELD = re.compile(r"(Object missing required field) `(.+)`", re.DOTALL)
# What a sender wrote does not belong into the text of an error, which operators see without the right to see bodies.
_QUOTED = re.compile(r"(Invalid (?:enum )?value) .*", re.DOTALL)
UNKNOWN_FIELD = "Object contains unknown field"
_STEP = re.compile(r"\[[^\]]*\]|[^.\[\]$]+")
# A text that may be a Decimal without a value, or one of any size: int() of 1e999999999 exhausts the memory. Decimal
# takes spaces around a number, underscores in it, and all digits of Unicode, which JSON may also write as escapes.
_RISKY = re.compile(
    rb'"[ _+-]*+(?:[sS]?_*[nN]_*[aA]_*[nN]|[iI]_*[nN]_*[fF]|[0-9_.]+[eE]|[0-9_.]{309}|[0-9_.sSnNaAiI]*[\\\x80-\xff])'
)


def codec_for(function: Callable[..., object], codec: Codec, handler: str, *, batch: bool = False) -> Codec:
    """Return the codec of a handler: its own one, or around it the one that converts to the annotation's type."""
    kind = named_type(function, handler, batch=batch)
    own = OWN_DATA.get(type(codec))
    if kind in (Any, object) or kind is own:
        return codec
    if own is not None:
        raise ConfigurationError(
            f"Handler {handler} names the type {_name(kind)}, but codec={type(codec).__name__}() gives it "
            f"{own.__name__}. Write Delivery[{own.__name__}], or omit codec."
        )
    return Typed(codec, _fit(kind, handler))


def named_type(function: Callable[..., object], handler: str, *, batch: bool = False) -> Any:
    """Return the type in the annotation ``Delivery[…]`` of a handler's parameter; Any if it names none.

    The parameter of a handler with ``batch`` is a list of them.
    """
    function = inspect.unwrap(function)
    annotation = _annotation(function)
    if annotation is None:
        return Any

    def probe() -> None: ...

    # Only this annotation is resolved: the others are none of our business, and may not be resolvable.
    probe.__annotations__ = {"message": annotation}
    try:
        hint = get_type_hints(probe, globalns=getattr(function, "__globals__", {}), include_extras=True)["message"]
    except Exception as error:
        if not NAMES_DELIVERY.search(annotation if isinstance(annotation, str) else repr(annotation)):
            return Any
        raise ConfigurationError(
            f"Handler {handler}: its annotation {annotation!s} cannot be resolved: {short(error, PROBLEM_BYTES)}. "
            "Import the type in the handler's module, not under TYPE_CHECKING or inside a function."
        ) from error
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    one, many = _is_delivery(hint), get_origin(hint) in LISTS and any(map(_is_delivery, get_args(hint)))
    if one if batch else many:
        raise ConfigurationError(
            f"Handler {handler} takes one message, but has batch=…: annotate it as list[Delivery]."
            if batch
            else f"Handler {handler} takes a list of messages. Add batch=Batch(100), or annotate it as Delivery."
        )
    hint = get_args(hint)[0] if many else hint
    return get_args(hint)[0] if get_origin(hint) is Delivery else Any


def _is_delivery(hint: object) -> bool:
    return hint is Delivery or get_origin(hint) is Delivery


def _annotation(function: Any) -> Any:
    try:
        annotations = getattr(function, "__annotations__", {})
    except NameError:
        # From Python 3.14 on, annotations are evaluated when they are read.
        library: Any = importlib.import_module("annotationlib")
        annotations = library.get_annotations(function, format=library.Format.STRING)
    return annotations.get(next(iter(signature_of(function).parameters), ""))


def _fit(kind: Any, handler: str) -> Fit:
    parts = set(_parts(kind))
    pydantic = any(hasattr(part, "__pydantic_core_schema__") for part in parts)
    extra = "pydantic" if pydantic else "msgspec"
    try:
        library = importlib.import_module(extra)
    except ImportError as error:
        raise ExtraMissing(handler, extra) from error
    try:
        return (Pydantic if pydantic else Msgspec)(library, kind, parts)
    except Exception as error:
        # Around what is wrong both have advice for their own callers: pydantic behind it, msgspec in front of it.
        said = (str(error).strip() or type(error).__name__).splitlines()[0 if pydantic else -1].rstrip(".")
        raise ConfigurationError(
            f"Handler {handler}: {_name(kind)} cannot be the type of its messages: {short(said, PROBLEM_BYTES)}. "
            f"Use {KINDS}, or a list or dict of them."
        ) from error


def _parts(kind: Any) -> Iterator[type]:
    """Yield the classes that a type is made of; those of pydantic's own models are not looked into."""
    for part in _written(kind, {}):
        named = get_origin(part) or part
        if isinstance(named, type):
            yield named


def _written(kind: Any, seen: dict[int, Any]) -> Iterator[Any]:
    """Yield a type and the types that it is made of, as they are written: ``list[Payment]`` before ``Payment``."""
    if id(kind) in seen:
        return
    # Kept, because most are made by get_type_hints: the id of one that is gone would be given to another.
    seen[id(kind)] = kind
    yield kind
    named = get_origin(kind) or kind
    for part in (*get_args(kind), *_hints(named).values(), *_meant(named)):
        yield from _written(part, seen)


def _meant(named: Any) -> Iterator[Any]:
    """Yield the type for which another name was made, by NewType or by ``type Name = …``."""
    for attribute in ("__supertype__", "__value__"):
        with suppress(AttributeError, NameError):
            yield getattr(named, attribute)


def _hints(kind: Any) -> dict[str, Any]:
    """Return the fields of a type that has some, with their types."""
    if not (dataclasses.is_dataclass(kind) or is_typeddict(kind) or hasattr(kind, "__struct_fields__")):
        return {}
    try:
        return get_type_hints(kind)
    except Exception:  # noqa: BLE001 - the library says it better when it is given the type
        return {}


def _is_keyed_by_decimals(kind: Any) -> bool:
    mappings = (part for part in _written(kind, {}) if _is_mapping(get_origin(part)) and get_args(part))
    return any(Decimal in _parts(get_args(one)[0]) for one in mappings)


def _is_mapping(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Mapping) and not is_typeddict(kind)


def _name(kind: Any) -> str:
    return short(getattr(kind, "__qualname__", None) or str(kind), PROBLEM_BYTES)


class _Converter:
    """What both libraries share: the names of the type, and the numbers that neither of them refuses."""

    def __init__(self, kind: Any, schema: Mapping[str, Any]) -> None:
        self.name = _name(kind)
        self.schema = schema
        """The JSON Schema of the type."""
        self._names = frozenset(_property_names(schema))

    def misfit(self, problems: list[tuple[str, str]]) -> Misfit:
        shown = [(short(path, PROBLEM_BYTES), short(problem, PROBLEM_BYTES)) for path, problem in problems]
        fields = [self._declared(path) for path, _problem in problems]
        return Misfit(self.name, shown[:MOST_PROBLEMS], fields=sorted(set(fields))[:MOST_PROBLEMS])

    def _declared(self, path: str) -> str:
        """Return a path with the type's own names only, so that a sender cannot make a group for each message."""
        return "$" + "".join(
            "[]" if step.startswith("[") else f".{step}" if step in self._names else ".…"
            for step in _STEP.findall(path)
        )

    def check_numbers(self, plain: object) -> None:
        found = [(path, problem) for path, number in _decimals(plain, "$") if (problem := _unusable(number))]
        if found:
            raise self.misfit(found)


class Msgspec(_Converter):
    """A type that msgspec converts."""

    def __init__(self, library: ModuleType, kind: Any, parts: set[Any]) -> None:
        # A type that msgspec does not know has no schema: it would refuse each message.
        super().__init__(kind, library.json.schema(kind))
        # Each costs half a microsecond a message, so only types that need it pay for it.
        keyed = any(_is_mapping(part) for part in parts)
        if keyed and _is_keyed_by_decimals(kind):
            raise TypeError("the keys of a dict are not checked for NaN and huge exponents, so they cannot be Decimal")
        self._convert = (
            partial(library.convert, type=kind, str_keys=True) if keyed else partial(library.convert, type=kind)
        )
        self._decimals = Decimal in parts
        self._direct = () if is_typeddict(kind) else _direct(kind)
        self._plain = library.to_builtins
        self._invalid = library.ValidationError

    def load(self, data: object, text: bytes | None) -> object:
        try:
            value: object = self._convert(data)
        except (self._invalid, UnicodeError) as error:
            raise self._told(error) from error
        if self._decimals:
            if self._direct:
                risky = any([_unusable(getattr(value, name)) for name in self._direct])  # noqa: C419 - a generator is slow
            else:
                risky = _may_be_risky(text)
            if risky:
                self.check_numbers(self._plain(value, builtin_types=(Decimal,), str_keys=True))
        return value

    def dump(self, data: object) -> object:
        try:
            plain: object = self._plain(data, builtin_types=(Decimal,), str_keys=True)
        except (TypeError, ValueError, RecursionError) as error:
            raise self.misfit([("$", str(error) or type(error).__name__)]) from error
        try:
            # A dataclass and a Struct do not look at their values when they are made.
            self._convert(plain)
        except (self._invalid, UnicodeError) as error:
            raise self._told(error) from error
        if self._decimals and _has_unusable(plain):
            self.check_numbers(plain)
        return plain

    def _told(self, error: Exception) -> Misfit:
        if isinstance(error, UnicodeError):
            return self.misfit([("$", "a text has a lone surrogate, which is no character")])
        return self.misfit([_located(str(error))])


class Pydantic(_Converter):
    """A type that pydantic validates."""

    def __init__(self, library: Any, kind: Any, _parts: set[Any]) -> None:
        self._adapter = library.TypeAdapter(kind)
        try:
            schema = self._adapter.json_schema()
        except Exception:  # noqa: BLE001 - some valid types have no schema: then their failures are one group
            schema = {}
        super().__init__(kind, schema)
        self._invalid = library.ValidationError
        self._unwritable = importlib.import_module("pydantic_core").PydanticSerializationError

    def load(self, data: object, text: bytes | None) -> object:
        value = self._validated(data)
        if _may_be_risky(text):
            self.check_numbers(self._adapter.dump_python(value, warnings=False))
        return value

    def dump(self, data: object) -> object:
        value = self._validated(data)
        try:
            plain: object = self._adapter.dump_python(value, mode="json", by_alias=True, warnings=False)
        except (self._unwritable, TypeError, ValueError, RecursionError) as error:
            raise self.misfit([("$", str(error) or type(error).__name__)]) from error
        # A model is not validated again if it is assigned to, unless it is configured so.
        again = self._validated(plain)
        self.check_numbers(self._adapter.dump_python(again, warnings=False))
        return plain

    def _validated(self, data: object) -> object:
        try:
            return self._adapter.validate_python(data)
        except self._invalid as error:
            found = error.errors(include_url=False, include_context=False, include_input=False)
            raise self.misfit([(_path(one["loc"]), str(one["msg"])) for one in found]) from error


def _may_be_risky(text: bytes | None) -> bool:
    """Return False if no Decimal that was read from this JSON needs to be looked at, which takes time."""
    return text is None or _RISKY.search(text) is not None


def _direct(kind: Any) -> tuple[str, ...]:
    """Return the fields that are Decimals; none if there are further Decimals deeper in the type."""
    hints = _hints(kind)
    deeper = any(Decimal in set(_parts(hint)) for hint in hints.values() if hint is not Decimal)
    return () if deeper else tuple(name for name, hint in hints.items() if hint is Decimal)


def _located(text: str) -> tuple[str, str]:
    """Return the path and the problem in an error's text of msgspec."""
    # A name that a sender invented may look like the path behind it.
    found = None if text.startswith(UNKNOWN_FIELD) else _AT.fullmatch(text)
    path, problem = (found["path"], found["problem"]) if found else ("$", text)
    if field := _FIELD.fullmatch(problem):
        return f"{path}.{field[2]}", field[1]
    return path, _QUOTED.sub(r"\1", problem)


def _path(steps: tuple[int | str, ...]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps)


def _property_names(schema: object) -> Iterator[str]:
    if isinstance(schema, Mapping):
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            yield from properties
        for inner in schema.values():
            yield from _property_names(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from _property_names(inner)


def _decimals(plain: object, path: str) -> Iterator[tuple[str, Decimal]]:
    if isinstance(plain, Decimal):
        yield path, plain
    elif isinstance(plain, Mapping):
        for name, inner in plain.items():
            yield from _decimals(name, f"{path}.{name}")
            yield from _decimals(inner, f"{path}.{name}")
    elif isinstance(plain, (list, tuple, set, frozenset)):
        for number, inner in enumerate(plain):
            yield from _decimals(inner, f"{path}[{number}]")


def _has_unusable(plain: object) -> bool:
    """Return whether plain data of msgspec have such a number, in a fifth of the time that its path takes."""
    if isinstance(plain, dict):
        return any(map(_has_unusable, plain.values()))
    if isinstance(plain, (list, tuple)):
        return any(map(_has_unusable, plain))
    return isinstance(plain, Decimal) and _unusable(plain) != ""


def _unusable(number: object) -> str:
    # The default of a field may be of another type, such as 0 or None.
    if not isinstance(number, Decimal):
        return ""
    if not number.is_finite():
        return "it is no number"
    return "its exponent is too large" if abs(number.adjusted()) > MAGNITUDE_LIMIT else ""
