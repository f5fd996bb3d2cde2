"""The paper's decoder as models of transformers: configuration, models and their cache."""

from dataclasses import MISSING, fields, replace
from inspect import Parameter, Signature
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.compiler import is_compiling
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from relation.errors import InputError, check_among
from relation.hf.attention import refuse_if
from relation.kernels.documents import Documents
from relation.nn import Decoder, DecodeState
from relation.nn.model import check_tokens, places_of
from relation.variants import FULL, ModelConfig

# A model of 10M parameters: transformers makes a configuration without arguments to compare with.
_FIELDS = {f.name: None if f.default is MISSING else f.default for f in fields(ModelConfig)}
_FIELDS |= {"vocab_size": 4096, "d_model": 384, "heads": 8, "d_ff": 768, "layout": FULL * 6}
# Trainer, generation and tokenizers pass these to any model; the states depend on none of them.
_PASSED = {"cache_position", "token_type_ids", "num_items_in_batch", "shift_labels", "ignore_index"}
_OUTPUTS = {
    "output_attentions": "call decoder.flows(tokens)",
    "output_hidden_states": "hook the modules of decoder.blocks",
}


class RelationConfig(PretrainedConfig):
    """`ModelConfig`'s fields as arguments, and those that every configuration of transformers has.

    `layout` has a letter a layer, A for MHA, F for Full and L for Linear Relation, so that "LLLF" *
    3 is a Hybrid; `num_hidden_layers` alone gives as many Full layers. transformers' names for the
    sizes (`hidden_size`, `num_attention_heads`, ...) read the same. Raises InputError where no such
    model exists, and for an unknown field, except in a file, as other versions write other ones.
    """

    model_type = "relation"
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_attention_heads": "heads",
        "initializer_range": "init_std",
    }

    def __init__(self, **options):
        layers = options.get("num_hidden_layers")
        if layers is not None and options.get("layout") is None:
            options["layout"] = FULL * layers
        theirs = {name: their for their, name in self.attribute_map.items()}
        for name, default in _FIELDS.items():
            value = options.pop(theirs.get(name, ""), default)  # by transformers' name for it
            setattr(self, name, options.pop(name, value))
        if "transformers_version" not in options:  # which files have
            names = {*dir(self), *vars(PretrainedConfig()), *vars(GenerationConfig())}
            for name in sorted(options.keys() - names - {"attn_implementation"}):
                fields = (*_FIELDS, *self.attribute_map, "num_hidden_layers", "num_key_value_heads")
                check_among(name, fields, f"RelationConfig has no {name}")
        super().__init__(**options)
        self.model()  # refuses what is no model

    @classmethod
    def of(cls, config: ModelConfig, **options) -> "RelationConfig":
        """The configuration of a model of this project's; options: transformers' own fields."""
        return cls(**{name: getattr(config, name) for name in _FIELDS}, **options)

    def model(self) -> ModelConfig:
        """The model's shape as the decoder takes it."""
        return ModelConfig(**{name: getattr(self, name) for name in _FIELDS})

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


# The arguments by name, as help and editors show them.
RelationConfig.__init__.__signature__ = Signature([
    Parameter("self", Parameter.POSITIONAL_ONLY),
    *(Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in _FIELDS.items()),
    Parameter("options", Parameter.VAR_KEYWORD),
])  # fmt: skip


class RelationCache:
    """What `generate` and the models take as `cache`: the decode state, one cache a layer."""

    # What `generate` reads of a cache besides its length.
    is_compileable, is_croppable, is_linear = False, False, (False,)

    def __init__(self, config: RelationConfig, capacity: int = 256):
        self.state = DecodeState(config.layout, capacity)
        self.columns = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns of the batch that were read, padding among them."""
        return self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the rows (n,) int64 in that order, as beam search does after each token."""
        self.state.reorder(beam_idx)


class RelationPreTrainedModel(PreTrainedModel):
    """What both models share: the configuration, and how missing weights are drawn."""

    config_class = RelationConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]  # noqa: RUF012
    supports_gradient_checkpointing = True
    # A Linear layer's state cannot go back by a token, as assisted generation would have it.
    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding, whose weight is the output matrix too."""
        return self.base_model.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding in its place, whose rows are then the vocabulary."""
        decoder = self.base_model.decoder
        decoder.embedding = value
        self.config.vocab_size = len(value.weight)
        decoder.config = replace(decoder.config, vocab_size=len(value.weight))

    def initialize_weights(self) -> None:
        """Draw the weights that no file has as `Decoder.initialise` does, by torch's seed."""
        decoder = self.base_model.decoder
        if getattr(decoder, "_is_hf_initialized", False):  # by the base model
            return
        decoder.initialise(int(torch.randint(2**62, (), device="cpu")))
        decoder._is_hf_initialized = True


class RelationModel(RelationPreTrainedModel):
    """The decoder without its output matrix: tokens to states, by the fastest backends that run."""

    def __init__(self, config: RelationConfig):
        super().__init__(config)
        self.decoder = Decoder(config.model(), seed=None)  # post_init draws the weights
        self.gradient_checkpointing = False  # transformers sets it
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RelationCache | None = None,
        use_cache: bool | None = None,
        position_ids: Tensor | None = None,
        cache: RelationCache | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        """The last norm's output, (B, T, d), of input_ids (B, T) int64.

        attention_mask: (B, T), 0 for padding at either side; with a cache also (B, read + T).
        cache: the tokens read so far, which takes these in; with `use_cache` an empty one is made.
        With a cache nothing is differentiable. past_key_values: the cache, as transformers before
        5.24 names it. position_ids: (B, T) or (1, T); a document starts where they do not increase
        by 1. Raises InputError for padding or documents that cannot be, a request for attentions or
        hidden states, and unknown options.
        """
        self._check(options)
        if cache is not None and past_key_values is not None:
            raise InputError("cache and past_key_values name one thing; give one of them")
        cache = past_key_values if cache is None else cache
        if cache is None and use_cache:
            cache = RelationCache(self.config)
        if not isinstance(cache, RelationCache | None):
            raise InputError(f"cache is a {type(cache).__name__}; give relation.hf.RelationCache")
        read = 0 if cache is None else cache.columns
        shape = tuple(input_ids.shape)
        for name, tensor, fits, advice in (
            ("attention_mask", attention_mask, (*shape[:-1], read + shape[-1]), "padding, (B, T)"),
            ("position_ids", position_ids, (1, *shape[1:]), "a position for each token"),
        ):
            if tensor is not None and tensor.shape not in (shape, fits):
                raise InputError(
                    f"{name} has shape {tuple(tensor.shape)} and input_ids {shape}; give {advice}"
                )
        starts = _starts(position_ids, attention_mask, input_ids, read)
        if cache is None:
            states = self._states(input_ids, _documents(attention_mask, starts))
        else:
            if starts is not None:
                problem = "position_ids start a second document in a row of the cache"
                refuse_if(starts.any(), f"{problem}; give each a row, or leave out the cache")
            states = self._continue(input_ids, attention_mask, cache.state)
            cache.columns += input_ids.shape[1]
        # By place: the cache's field has another name since transformers 5.24.
        return BaseModelOutputWithPast(states, cache)

    def _states(self, tokens: Tensor, documents: Documents | None) -> Tensor:
        """`Decoder.states`, whose blocks are computed again in the backward if asked to be."""
        decoder = self.decoder
        if not (self.gradient_checkpointing and self.training):
            return decoder.states(tokens, documents)
        x, rope = decoder.embed(tokens), decoder.rope_tables(places_of(tokens, documents))
        for block in decoder.blocks:
            x = self._gradient_checkpointing_func(block, x, rope, None, documents)
        return decoder.norm(x)

    def _check(self, options: dict[str, Any]) -> None:
        """Raise InputError for outputs that there are not, and for unknown options."""
        for name, instead in _OUTPUTS.items():
            value = options.pop(name, None)
            if getattr(self.config, name) if value is None else value:
                raise InputError(f"a Relation model has no {name}; leave it out and {instead}")
        names = {name for name, value in options.items() if value is not None}
        if unknown := sorted(names - _PASSED):
            raise InputError(
                f"a Relation model takes no {', '.join(unknown)}; it takes input_ids, "
                "attention_mask, position_ids, cache and use_cache, and "
                "RelationForCausalLM also labels and logits_to_keep"
            )

    def _continue(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Tensor:
        """States (B, n, d) of tokens that follow those that `state` has read."""
        if mask is not None:
            if state.length == 0:
                return self._begin(tokens, mask, state)
            refuse_if((mask[:, -tokens.shape[1] :] == 0).any(), "pad a cache's first block alone")
        with torch.no_grad():  # begins after what may raise: a graph that raises leaves it on
            return self.decoder.states(tokens, state=state)

    @torch.compiler.disable(reason="where a prompt is padded decides what is computed")
    @torch.no_grad()
    def _begin(self, tokens: Tensor, mask: Tensor, state: DecodeState) -> Tensor:
        """`_continue` of a cache's first block, which may be padded."""
        n = tokens.shape[1]
        if mask.all():
            return self.decoder.states(tokens, state=state)
        Documents.padded(mask)  # raises where text is missing or interrupted
        # A decode state wants every row to begin at once: rows move left, and their states back.
        first_text = (mask != 0).long().argmax(dim=1, keepdim=True)  # column, (B, 1)
        place = torch.arange(n, device=tokens.device)
        check_tokens(tokens, self.config.vocab_size)  # first: after an error `begin` would stay
        state.begin(tokens, (mask != 0).sum(dim=1).tolist())
        states = self.decoder.states(tokens.gather(1, (place + first_text) % n), state=state)
        # Padding's own states are those of a document by itself, which nobody reads.
        columns = ((place - first_text) % n)[..., None].expand(-1, -1, states.shape[2])
        return states.gather(1, columns)


def _starts(places: Tensor | None, mask: Tensor | None, tokens: Tensor, read: int) -> Tensor | None:
    """Which tokens (B, n) start a document after other text of their row; None without positions.

    places: position_ids. read: columns of the cache; after them place 0 starts a document too.
    """
    if places is None:
        return None
    first = (places[:, :1] == 0) & (read > 0)
    starts = torch.cat((first, places.diff(dim=1) != 1), dim=1).expand(tokens.shape)
    if mask is not None:  # padding may have any position
        text = mask[:, -tokens.shape[1] :] != 0
        starts = starts & text & F.pad(text[:, :-1], (1, 0), value=read > 0)
    return starts


def _documents(mask: Tensor | None, starts: Tensor | None) -> Documents | None:
    """What a padding mask (B, T) and `_starts` let tokens see; None where rows are documents.

    torch.compile, which knows no values, gets documents of any number.
    """
    begins, fits = starts, None
    if mask is not None:
        text = mask != 0
        before = F.pad(text[:, :-1], (1, 0))
        begins = text != before if begins is None else begins | (text != before)
        fits = ((text & ~before).sum(1) == 1).all()  # text in one piece
    if begins is None:
        return None
    if is_compiling():
        if fits is not None:
            torch._assert_async(fits, "a row of the padding mask has no text, or pieces of it")
        return Documents.bounded(begins, begins.numel())
    if fits is not None and not fits:
        Documents.padded(mask)  # raises
    return Documents.of(begins.cumsum(1)) if begins[:, 1:].any() else None


class RelationForCausalLM(RelationPreTrainedModel, GenerationMixin):
    """The language model: logits by the embedding's own weight, which is the output matrix."""

    def __init__(self, config: RelationConfig):
        super().__init__(config)
        self.model = RelationModel(config)
        self.post_init()

    @classmethod
    def of(cls, decoder: Decoder, **options) -> "RelationForCausalLM":
        """A decoder of this project as a model of transformers, with copies of its weights.

        options: fields of the configuration, such as `eos_token_id`.
        """
        model = cls(RelationConfig.of(decoder.config, **options))
        model.model.decoder.load_state_dict(decoder.state_dict())
        return model.to(decoder.embedding.weight.device)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RelationCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        position_ids: Tensor | None = None,
        cache: RelationCache | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V) of input_ids (B, T); the other arguments as `RelationModel` takes them.

        labels: (B, T) int64, the tokens themselves, -100 where they do not count: `loss` is then
        the mean negative log-likelihood of each from those before it, nat/token. logits_to_keep:
        only the last so many tokens' logits; 0 keeps all.
        """
        read = (input_ids, attention_mask, past_key_values, use_cache, position_ids, cache)
        states, *cache = self.model(*read, return_dict=True, **options).to_tuple()
        logits = self.model.decoder.logits(states[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **options)
        return CausalLMOutputWithPast(loss, logits, *cache)

    def _expand_inputs_for_generation(self, *, input_ids: Tensor, position_ids=None, **options):
        """A row for each beam or text of a prompt; position_ids (1, T) hold for all of them."""
        if position_ids is not None and len(position_ids) == 1:
            position_ids = position_ids.expand(len(input_ids), -1)
        options |= {"input_ids": input_ids, "position_ids": position_ids}
        return super()._expand_inputs_for_generation(**options)


AutoConfig.register(RelationConfig.model_type, RelationConfig)
AutoModel.register(RelationConfig, RelationModel)
AutoModelForCausalLM.register(RelationConfig, RelationForCausalLM)
