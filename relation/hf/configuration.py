"""A model's configuration as transformers keeps it."""

from dataclasses import MISSING, fields

from transformers import AutoConfig, GenerationConfig, PretrainedConfig

from relation.errors import InputError
from relation.nn.layers import check_types
from relation.variants import ModelConfig, model_config

# A model of 10M parameters: transformers makes a configuration without arguments to compare with.
_DEFAULTS = {"vocab_size": 4096, "d_model": 384, "heads": 8, "d_ff": 768, "layout": "F" * 6}


class RelationConfig(PretrainedConfig):
    """`ModelConfig` with the fields that every configuration of transformers has.

    Its keywords are `ModelConfig`'s fields: `layout` has a letter a layer, A for MHA, F for Full
    and L for Linear Relation, so that "LLLF" * 3 is a Hybrid. transformers' names for the sizes
    (`hidden_size`, `num_attention_heads`, `num_key_value_heads`, ...) read the same. Raises
    InputError where no such model exists, and for an unknown field. A saved configuration may have
    further fields, because other versions of transformers write other ones.
    """

    model_type = "relation"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_attention_heads": "heads",
        "initializer_range": "init_std",
    }

    def __init__(self, **options):
        for field in fields(ModelConfig):
            default = _DEFAULTS.get(field.name, None if field.default is MISSING else field.default)
            # transformers writes every attribute as JSON, which has no tuples.
            value = options.pop(self._other_name(field.name), default)
            value = options.pop(field.name, value)
            setattr(self, field.name, list(value) if isinstance(value, tuple) else value)
        if "transformers_version" not in options:
            self._check(options)
        super().__init__(**options)
        self.model()

    def _check(self, options: dict) -> None:
        """Raise InputError for fields that transformers does not know either."""
        known = {*dir(self), *vars(PretrainedConfig()), *vars(GenerationConfig())}
        if unknown := sorted(options.keys() - known - {"attn_implementation"}):
            raise InputError(
                f"RelationConfig has no {', '.join(unknown)}; its fields are "
                f"{', '.join(field.name for field in fields(ModelConfig))}"
            )

    @classmethod
    def _other_name(cls, name: str) -> str:
        return next((other for other, own in cls.attribute_map.items() if own == name), "")

    @classmethod
    def of(cls, config: ModelConfig, **options) -> "RelationConfig":
        """The configuration of a model of this project's; options: transformers' own fields."""
        return cls(**{f.name: getattr(config, f.name) for f in fields(config)}, **options)

    def model(self) -> ModelConfig:
        """The model's shape as the decoder takes it."""
        values = {field.name: getattr(self, field.name) for field in fields(ModelConfig)}
        check_types(values)
        return model_config(values)

    @property
    def num_hidden_layers(self) -> int:
        """Layers of the layout. Raises InputError where another number is set."""
        return len(self.layout)

    @num_hidden_layers.setter
    def num_hidden_layers(self, layers: int) -> None:
        if layers != len(self.layout):
            raise InputError(
                f"num_hidden_layers is {layers} and layout {self.layout!r}; give a layout with a "
                f'letter a layer, such as "F" * {layers}'
            )

    @property
    def num_key_value_heads(self) -> int:
        """Heads of the second coordinate and of information."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @num_key_value_heads.setter
    def num_key_value_heads(self, heads: int) -> None:
        self.kv_heads = heads


AutoConfig.register(RelationConfig.model_type, RelationConfig)
