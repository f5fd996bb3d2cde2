"""The configuration's JSON Schema, and what follows from it: which keys there are, in words."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from pydantic import TypeAdapter

from relation.pipeline.sections import Configuration

# In a key's place: a name of one's own, and a position in a list.
_NAME, _POSITION = "NAME", "N"


@cache
def adapter() -> TypeAdapter:
    """What validates a configuration."""
    return TypeAdapter(Configuration)


@cache
def schema() -> dict:
    """The configuration's JSON Schema, after each campaign's `base` has been merged in."""
    return adapter().json_schema()


def _options(node: Mapping) -> Iterator[Mapping]:
    """A schema, and those that it refers to or offers as alternatives."""
    yield node
    if "$ref" in node:
        yield from _options(schema()["$defs"][node["$ref"].rpartition("/")[2]])
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _options(alternative)


def _below(node: Mapping) -> dict[str, dict]:
    """The schemas of what a value holds, by key."""
    found: dict[str, list] = {}
    for option in _options(node):
        inner = dict(option.get("properties", {}))
        free = [*option.get("patternProperties", {}).values(), option.get("additionalProperties")]
        inner |= {_NAME: free[0], _POSITION: option.get("items")}
        for name, each in inner.items():
            if isinstance(each, Mapping):
                found.setdefault(name, []).append(each)
    return {name: {"anyOf": each} for name, each in found.items()}


def known_keys(place: list) -> list[str]:
    """The keys that the configuration takes at a place."""
    node = schema()
    for part in place:
        below = _below(node)
        own = _POSITION if isinstance(part, int) else _NAME
        node = below.get(part) or below.get(own) or {}
    return [name for name in _below(node) if name not in (_NAME, _POSITION)]


_TYPES = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "object": "a mapping",
    "array": "a list",
    "null": "null",
}
_BOUNDS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "exclusiveMaximum": "below {}",
}


def _takes(node: Mapping) -> str:
    """The values that a schema takes, in words."""
    words = []
    for option in _options(node):
        if "enum" in option or "const" in option:
            words += [
                str(value).lower() if isinstance(value, bool) else str(value)
                for value in option.get("enum") or [option["const"]]
            ]
        elif "type" in option:
            bounds = [said.format(option[name]) for name, said in _BOUNDS.items() if name in option]
            inner = f" of {_takes(option['items'])}" if "items" in option else ""
            words.append(", ".join([_TYPES[option["type"]] + inner, *bounds]))
    return " or ".join(dict.fromkeys(words))


def _meaning(node: Mapping) -> str:
    """A schema's description, or that of what it refers to."""
    found = (option["description"] for option in _options(node) if "description" in option)
    return next(found, "").rstrip(".")


@dataclass(frozen=True)
class Key:
    """A key of config.yaml.

    place: its dotted place, in which NAME stands for a name of one's own and N for a position in a
    list; takes: the values that it takes, in words; meaning: its description.
    """

    place: str
    takes: str
    meaning: str


def documented_keys(node: Mapping | None = None, outer: str = "") -> Iterator[Key]:
    """Every key that a schema takes, the configuration's if None, each before those inside it."""
    for name, inner in _below(schema() if node is None else node).items():
        place = f"{outer}.{name}".lstrip(".")
        if name != _POSITION:
            meanings = dict.fromkeys(map(_meaning, inner["anyOf"]))
            yield Key(place, _takes(inner), "; ".join(filter(None, meanings)))
        yield from documented_keys(inner, place)
