"""Reading config.yaml: inheritance between campaigns, then validation by the types."""

import json
from collections.abc import Mapping
from difflib import get_close_matches
from pathlib import Path

import yaml
from pydantic import ValidationError

from relation.errors import InputError
from relation.pipeline.keys import adapter, known_keys
from relation.pipeline.sections import Configuration


class _Loader(yaml.SafeLoader):
    """Plain YAML: no tags of Python, no aliases, which can grow without bound, no key twice."""

    def compose_node(self, parent, index):
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.composer.ComposerError(None, None, "aliases are not taken", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node, deep=False):
        keys = [key.value for key, _ in node.value if isinstance(key, yaml.ScalarNode)]
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and keys.count(key.value) > 1:
                problem = f"the key {key.value!r} stands there twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
        return super().construct_mapping(node, deep)


def load_config(path: Path) -> dict:
    """Read a configuration, YAML or .json. Raises InputError where it is missing or neither."""
    try:
        text = path.read_text(encoding="utf-8")
        # Python's JSON writes 1e-06, which YAML 1.1 reads as a string.
        config = json.loads(text) if path.suffix == ".json" else yaml.load(text, _Loader)
    except FileNotFoundError:
        raise InputError(f"no configuration file {path}; run from the project's folder") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 at byte {error.start}; convert it") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read ({error.strerror}); give a file") from None
    except RecursionError:
        raise InputError(f"{path} is nested too deeply; see config.yaml of the project") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {error.lineno} is not JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise InputError(f"{path}{line} is not YAML: {getattr(error, 'problem', error)}") from None
    except ValueError as error:  # a date or a number that Python cannot hold
        raise InputError(f"{path} holds a value that cannot be read ({error})") from None
    if not isinstance(config, dict):
        raise InputError(f"{path} holds no mapping; see config.yaml of the project")
    return config


def _merge(base: Mapping, changes: Mapping) -> dict:
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, Mapping) and isinstance(merged.get(key), Mapping)
        # A source of another kind shares no key with the one it replaces.
        merged[key] = _merge(merged[key], value) if both and key != "source" else value
    return merged


def _lineage(campaigns: Mapping, name: str) -> list[str]:
    """A campaign and its bases, itself first."""
    names = [name]
    while True:
        campaign = campaigns[names[-1]]
        if not isinstance(campaign, Mapping):
            raise InputError(f"config: campaigns.{names[-1]} is no mapping; give its values")
        base = campaign.get("base")
        if base is None:
            return names
        if not isinstance(base, str) or base not in campaigns:
            raise InputError(
                f"config: campaigns.{names[-1]}.base is {base!r}, which is not a campaign"
            )
        if base in names:
            raise InputError(f"config: campaigns.{name}.base leads back to itself; remove one base")
        names.append(base)


def merged(config: Mapping) -> dict:
    """The configuration with every campaign's base merged in.

    Raises InputError where a base is no campaign or leads back to itself.
    """
    campaigns = config.get("campaigns")
    if not isinstance(campaigns, Mapping):
        return dict(config)
    whole: dict[str, dict] = {}
    for name in campaigns:
        whole[name] = {}
        for ancestor in reversed(_lineage(campaigns, name)):
            whole[name] = _merge(whole[name], campaigns[ancestor])
    return {**config, "campaigns": whole}


def _place(config: object, location: tuple) -> list:
    """Where an error lies: pydantic's location without its names of types and alternatives."""
    place = []
    for part in location:
        mapping = isinstance(config, Mapping) and part in config
        if mapping or (isinstance(config, list) and isinstance(part, int)):
            place.append(part)
            config = config[part]
    return place


_UNKNOWN = ("unexpected_keyword_argument", "extra_forbidden")
_PHRASES = {
    "literal_error": "{value} is not one of {expected}",
    "union_tag_invalid": "kind {tag!r} is not one of {expected_tags}",
    "finite_number": "{value} is not a finite number",
    "string_pattern_mismatch": "{value} does not match {pattern!r}",
    "less_than_equal": "{value} is greater than the maximum of {le}",
    **dict.fromkeys(("dict_type", "dataclass_type"), "{value} is no mapping"),
}


def _told(error: Mapping, place: list) -> str:
    """A violation in one line."""
    *parents, last = place or [""]
    if error["type"] in _UNKNOWN:
        known = known_keys(parents)
        near = get_close_matches(str(last), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"choose among {', '.join(known)}"
        place, said = parents, f"unknown key {last!r}; {hint}"
    elif error["type"] == "missing":
        said = f"{error['loc'][-1]!r} is missing"
    else:
        value = "this" if isinstance(error["input"], Mapping) else repr(error["input"])[:80]
        phrase = _PHRASES.get(error["type"])
        if phrase is None:
            said = error["msg"].replace("Input", value, 1)
        else:
            said = phrase.format(value=value, **error.get("ctx", {}))
        if error["loc"][-1] == "[key]":
            place = parents
    return f"config: {'.'.join(map(str, place)) or 'top level'}: {said.splitlines()[0]}"


def checked(config: Mapping) -> Configuration:
    """A merged configuration as its types have it.

    Raises InputError with the place and the reason of the first violation; a key that nobody knows
    is named before those that are missing.
    """
    try:
        return adapter().validate_python(config)
    except ValidationError as refused:
        errors = refused.errors(include_url=False)

    def first(error: Mapping) -> tuple:
        place = _place(config, error["loc"])
        # What is wrong in a base is wrong in every campaign built on it: name it where it stands.
        inherited = 0
        if place[:1] == ["campaigns"] and len(place) > 1:
            inherited = len(_lineage(config["campaigns"], place[1]))
        # Of the alternatives to a rule's misspelt name, such as a number, the names help.
        alternative = isinstance(error["input"], str) and error["type"] != "literal_error"
        return inherited, error["type"] not in _UNKNOWN, len(place), alternative

    error = min(errors, key=first)
    raise InputError(_told(error, _place(config, error["loc"])))
