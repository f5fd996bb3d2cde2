"""Reading config.yaml: inheritance between campaigns, then validation against the schema."""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path

import jsonschema
import yaml

from relation.errors import InputError

SCHEMA_PATH = Path(__file__).parents[2] / "workflow" / "schemas" / "config.schema.yaml"


@cache
def schema() -> dict:
    """The JSON Schema of the configuration, whose descriptions the report prints."""
    return yaml.safe_load(SCHEMA_PATH.read_text(encoding="utf-8"))


def load_config(path: Path) -> dict:
    """Read a configuration, YAML or .json. Raises InputError where it is missing or neither."""
    try:
        text = path.read_text(encoding="utf-8")
        # Python's JSON writes 1e-06, which YAML 1.1 reads as a string.
        config = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
    except FileNotFoundError:
        raise InputError(f"no configuration file {path}; run from the project's folder") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path} line {error.lineno} is not JSON: {error.msg}") from None
    except yaml.YAMLError as error:
        where = getattr(error, "problem_mark", None)
        line = f" line {where.line + 1}" if where else ""
        raise InputError(f"{path}{line} is not YAML: {getattr(error, 'problem', error)}") from None
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


def _inherit(campaigns: Mapping, name: str, seen: tuple[str, ...] = ()) -> dict:
    campaign = campaigns[name]
    base = campaign.get("base") if isinstance(campaign, Mapping) else None
    if base is None:
        return campaign
    if base not in campaigns:
        raise InputError(f"config: campaigns.{name}.base is {base!r}, which is not a campaign")
    if base in (*seen, name):
        raise InputError(f"config: campaigns.{name}.base leads back to itself; remove one base")
    return _merge(_inherit(campaigns, base, (*seen, name)), campaign)


def validate(config: Mapping) -> dict:
    """The configuration with every campaign's base merged in, checked against the schema.

    Raises InputError with the place and the reason of the first violation.
    """
    campaigns = config.get("campaigns")
    merged = dict(config)
    if isinstance(campaigns, Mapping):
        merged["campaigns"] = {name: _inherit(campaigns, name) for name in campaigns}
    validator = jsonschema.Draft202012Validator(schema())
    error = jsonschema.exceptions.best_match(validator.iter_errors(merged))
    if error is not None:
        place = ".".join(str(part) for part in error.absolute_path) or "top level"
        raise InputError(f"config: {place}: {error.message.splitlines()[0]}")
    return merged
