"""Relation in transformers: models of its own, and Full Relation in Llama-type models.

Importing it registers `RelationConfig`, `RelationModel` and `RelationForCausalLM` with the Auto
classes, and the attention "relation". It needs the extra `hf`.
"""

from relation.hf.attention import add_lambda
from relation.hf.modeling import RelationCache, RelationConfig, RelationForCausalLM, RelationModel

__all__ = ["RelationCache", "RelationConfig", "RelationForCausalLM", "RelationModel", "add_lambda"]
