"""Reading config.yaml: inheritance between campaigns, then validation against the schema."""

import json
import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import jsonschema
import yaml

from relation.errors import InputError

SCHEMA_PATH = Path(__file__).parents[2] / "workflow" / "schemas" / "config.schema.yaml"


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


@cache
def schema() -> dict:
    """The JSON Schema of the configuration, whose descriptions the report prints."""
    return yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))


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


def _refuse_non_finite(value: object, place: str = "") -> None:
    """YAML spells .nan and .inf; JSON Schema counts them as numbers, and no setting means them."""
    if isinstance(value, float) and not math.isfinite(value):
        raise InputError(f"config: {place}: {value} is not a finite number")
    items = value.items() if isinstance(value, Mapping) else ()
    items = enumerate(value) if isinstance(value, list) else items
    for key, item in items:
        _refuse_non_finite(item, f"{place}.{key}" if place else str(key))


def validate(config: Mapping) -> dict:
    """The configuration with every campaign's base merged in, checked against the schema.

    Raises InputError with the place and the reason of the first violation.
    """
    campaigns = config.get("campaigns")
    merged, depth = dict(config), {}
    if isinstance(campaigns, Mapping):
        merged["campaigns"] = {}
        for name in campaigns:
            lineage = _lineage(campaigns, name)
            depth[name] = len(lineage)
            whole: dict = {}
            for ancestor in reversed(lineage):
                whole = _merge(whole, campaigns[ancestor])
            merged["campaigns"][name] = whole
    _refuse_non_finite(merged)

    def inherited(error: jsonschema.ValidationError) -> int:
        place = list(error.absolute_path)
        return depth.get(place[1], 0) if len(place) > 1 and place[0] == "campaigns" else 0

    errors = list(jsonschema.Draft202012Validator(schema()).iter_errors(merged))
    # What is wrong in a base is wrong in every campaign built on it: name it where it stands.
    nearest = min(map(inherited, errors), default=0)
    error = jsonschema.exceptions.best_match(e for e in errors if inherited(e) == nearest)
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "top level"
        raise InputError(f"config: {place}: {error.message.splitlines()[0]}")
    return merged
