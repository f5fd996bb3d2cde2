"""Relation in transformers: the paper's decoder as a model, and Full Relation in Llama-type models.

The import registers `RelationConfig`, `RelationModel` and `RelationForCausalLM` with the Auto
classes, and the attention "relation". It needs the extra `hf`.
"""

try:
    import transformers  # noqa: F401
except ImportError as error:
    raise ImportError(
        "relation.hf needs transformers; run `pip install '.[hf]'` in the project's folder"
    ) from error

from relation.hf.attention import add_lambda
from relation.hf.modeling import RelationCache, RelationConfig, RelationForCausalLM, RelationModel

__all__ = ["RelationCache", "RelationConfig", "RelationForCausalLM", "RelationModel", "add_lambda"]
