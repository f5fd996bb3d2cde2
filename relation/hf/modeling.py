"""The paper's decoder in transformers: its configuration, models and cache."""

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
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
from transformers.utils import can_return_tuple

from relation.errors import InputError, check_among
from relation.hf.attention import refuse_if
from relation.kernels.documents import Documents
from relation.nn import Decoder, DecodeState
from relation.nn.model import check_tokens
from relation.variants import FULL, ModelConfig, check_type

# Defaults of a 10M model: transformers also makes a configuration without arguments, to compare.
_FIELDS = {f.name: None if f.default is MISSING else f.default for f in fields(ModelConfig)}
_FIELDS |= {"vocab_size": 4096, "d_model": 384, "heads": 8, "d_ff": None, "layout": FULL * 6}
# Trainer, generation and tokenizers pass these to every model. They do not change the states.
_PASSED = {"cache_position", "token_type_ids", "num_items_in_batch", "shift_labels", "ignore_index"}
_OUTPUTS = ("output_attentions", "output_hidden_states")
_WHOLE = "give generate the whole text, with new tokens, padded on the left"


class RelationConfig(PretrainedConfig):
    """A transformers configuration with the fields of `ModelConfig`.

    layout: one letter per layer, A for MHA, F for Full and L for Linear Relation, C for MHA with
    Relation's count and Self; "LLLF" * 3 is a Hybrid. `num_hidden_layers` without a layout gives
    Full layers. transformers' names of the sizes (`hidden_size`, ...) work too. Raises InputError
    for an impossible model and for unknown fields; a file may have fields of other versions.
    """

    model_type = "relation"
    use_cache = None  # `from_pretrained` may set it; only a call that asks for a cache has one
    attribute_map = {  # noqa: RUF012
        "hidden_size": "d_model",
        "intermediate_size": "d_ff",
        "num_attention_heads": "heads",
        "initializer_range": "init_std",
    }

    def __init__(self, **options):
        # By our names, and without NumPy's numbers, which JSON does not take.
        options = {
            self.attribute_map.get(name, name): x.item() if hasattr(x, "item") else x
            for name, x in options.items()
        }
        layers = options.get("num_hidden_layers")
        check_type("num_hidden_layers", layers, int | None)
        if layers is not None and options.get("layout") is None:
            options["layout"] = FULL * layers
        for name, default in _FIELDS.items():
            setattr(self, name, options.pop(name, default))
        if self.d_ff is None and isinstance(self.d_model, int):
            self.d_ff = 2 * self.d_model  # as in the paper
        if "transformers_version" not in options:  # only files have it
            theirs = {*dir(self), *vars(PretrainedConfig()), *vars(GenerationConfig())}
            theirs = {name for name in theirs if "rope" not in name}  # ours is rope_base
            ours = (*_FIELDS, *self.attribute_map, "num_hidden_layers", "num_key_value_heads")
            for name in sorted(options.keys() - theirs - {"attn_implementation"}):
                check_among(name, ours, f"RelationConfig has no {name}")
        super().__init__(**options)
        self.model()  # raises InputError for an impossible model

    @classmethod
    def of(cls, config: ModelConfig, **options) -> "RelationConfig":
        """Make the configuration from a `ModelConfig`. options: transformers' own fields."""
        return cls(**{name: getattr(config, name) for name in _FIELDS}, **options)

    def model(self) -> ModelConfig:
        """The `ModelConfig` of the decoder."""
        return ModelConfig(**{name: getattr(self, name) for name in _FIELDS})

    @property
    def num_hidden_layers(self) -> int:
        """The number of layers in the layout. Setting another number raises InputError."""
        return len(self.layout)

    @num_hidden_layers.setter
    def num_hidden_layers(self, layers: int) -> None:
        if layers != len(self.layout):
            raise InputError(
                f"num_hidden_layers is {layers} and layout {self.layout!r}; give a layout with one "
                f'letter per layer, such as "F" * {layers}'
            )

    @property
    def num_key_value_heads(self) -> int:
        """The number of heads of p2 and information."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @num_key_value_heads.setter
    def num_key_value_heads(self, heads: int) -> None:
        self.kv_heads = heads


# Lists the arguments by name for `help` and editors.
RelationConfig.__init__.__signature__ = Signature([
    Parameter("self", Parameter.POSITIONAL_ONLY),
    *(Parameter(name, Parameter.KEYWORD_ONLY, default=value) for name, value in _FIELDS.items()),
    Parameter("options", Parameter.VAR_KEYWORD),
])  # fmt: skip


class RelationCache:
    """The `cache` argument of the models and `generate`: a decode state, one cache per layer."""

    # `generate` reads these attributes.
    is_compileable, is_croppable, is_linear = False, False, (False,)

    def __init__(self, config: RelationConfig, capacity: int = 256):
        self.state = DecodeState(config.layout, capacity)
        self.columns = 0

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """The number of columns of the batch that were read, padding included."""
        return self.columns

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Keep the given rows, (n,) int64, in this order, as beam search needs after each token."""
        self.state.reorder(beam_idx)


class RelationPreTrainedModel(PreTrainedModel):
    """Base of both models: the configuration, and the initialisation of missing weights."""

    config_class = RelationConfig
    base_model_prefix = "model"
    _no_split_modules = ["Block"]  # noqa: RUF012
    supports_gradient_checkpointing = True
    _keep_in_fp32_modules_strict = ("lam", "theta", "a_log", "dt_bias")
    # Assisted generation must undo tokens, which a Linear layer's state cannot do.
    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding. Its weight is also the output matrix."""
        return self.base_model.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Replace the embedding; the vocabulary size becomes its number of rows."""
        decoder = self.base_model.decoder
        decoder.embedding = value
        self.config.vocab_size = len(value.weight)
        decoder.config = replace(decoder.config, vocab_size=len(value.weight))

    def initialize_weights(self) -> None:
        """Draw the weights that no file has with `Decoder.initialise`, seeded by PyTorch's RNG."""
        decoder = self.base_model.decoder
        if not getattr(decoder, "_is_hf_initialized", False):  # else its base model drew them
            decoder.initialise(int(torch.randint(2**62, (), device="cpu")))
            decoder._is_hf_initialized = True


class RelationModel(RelationPreTrainedModel):
    """The decoder without its output matrix, from tokens to states, on the fastest backends."""

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
        """Return the last norm's output, (B, T, d), for input_ids (B, T) int64.

        attention_mask: (B, T), 0 for padding at either side; with a cache also (B, read + T).
        cache: the state of the tokens read so far; it stores these tokens too. `use_cache` makes an
        empty one. It computes no gradients, so training refuses it. past_key_values: the name of
        `cache` before transformers 5.24. position_ids: (B, T) or (1, T); a document starts at each
        token whose position is not the previous plus 1. Raises InputError for impossible padding or
        documents, and for unknown options, also `output_attentions` and `output_hidden_states`.
        """
        asked = {name: getattr(self.config, name) for name in _OUTPUTS} | options
        asked = {name for name, x in asked.items() if x is not None and x is not False}
        if unknown := ", ".join(sorted(asked - _PASSED)):
            raise InputError(f"a Relation model takes no {unknown}; see help(model.forward)")
        if cache is not None and past_key_values is not None:
            raise InputError("cache and past_key_values are the same argument; give one of them")
        cache = past_key_values if cache is None else cache
        if cache is None and use_cache:
            cache = RelationCache(self.config)
        if cache is not None and self.training and torch.is_grad_enabled():
            raise InputError("a cache computes no gradients; leave it and use_cache out to train")
        if not isinstance(cache, RelationCache | None):
            raise InputError(f"cache is a {type(cache).__name__}; give relation.hf.RelationCache")
        read = least = 0  # columns in the cache; tokens that each row has read at least
        if cache is not None:
            state, read = cache.state, cache.columns
            least = state.length if state.lengths is None else state.lengths.min()
        shape = tuple(input_ids.shape)
        if read and not shape[-1]:
            raise InputError(f"input_ids have no token after the cache's {read}; {_WHOLE}")
        for name, tensor, other_shape, advice in (
            ("attention_mask", attention_mask, (*shape[:-1], read + shape[-1]), "padding, (B, T)"),
            ("position_ids", position_ids, (1, *shape[1:]), "a position for each token"),
        ):
            # Not `in`, which torch.compile answers wrongly for symbolic shapes.
            if tensor is not None and tensor.shape != shape and tensor.shape != other_shape:
                raise InputError(
                    f"{name} has shape {tuple(tensor.shape)} and input_ids {shape}; give {advice}"
                )
        starts = _starts(position_ids, attention_mask, input_ids, read, least)
        if cache is None:
            documents = _documents(attention_mask, starts)
            recomputes = self.gradient_checkpointing and self.training
            options = {"run": self._gradient_checkpointing_func} if recomputes else {}
            states = self.decoder.states(input_ids, documents, **options)
        else:
            if starts is not None:
                if attention_mask is not None and not is_compiling() and starts.any():
                    Documents.padded(attention_mask)  # raises if the mask is the reason
                problem = "a cache's row holds one document, which position_ids do not continue"
                refuse_if(starts.any(), f"{problem}; {_WHOLE}")
            states = self._continue(input_ids, attention_mask, cache.state)
            cache.columns += input_ids.shape[1]
        # Positional, because transformers 5.24 renamed the cache's field.
        return BaseModelOutputWithPast(states, cache)

    def _continue(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Tensor:
        """States (B, n, d) of tokens (B, n) after the tokens in `state`, which stores them too."""
        if mask is not None and state.length == 0:
            return self._begin(tokens, mask, state)
        if mask is not None:
            n = tokens.shape[1]
            read = state.length if state.lengths is None else state.lengths  # a number or (B,)
            is_text = mask != 0
            wrong = ~is_text[:, -n:].all(dim=1)  # (B,)
            # A mask may be of the new tokens alone. `states` refuses another number of rows.
            if mask.shape[1] > n and (state.lengths is None or len(read) == len(mask)):
                wrong |= is_text[:, :-n].sum(dim=1) != read
            refuse_if(wrong.any(), "pad only a cache's first block, and mask it as it was read")
        with torch.no_grad():  # after refuse_if: a compiled graph that raises would leave it on
            return self.decoder.states(tokens, state=state)

    @torch.compiler.disable(reason="the padding of a prompt decides what is computed")
    @torch.no_grad()
    def _begin(self, tokens: Tensor, mask: Tensor, state: DecodeState) -> Tensor:
        """`_continue` for a cache's first block, which may be padded."""
        n = tokens.shape[1]
        if (mask == 1).all():
            return self.decoder.states(tokens, state=state)
        Documents.padded(mask)  # raises if text is missing or interrupted, and for other numbers
        # A decode state takes padding at the right: move each row left, and its states back.
        first_text = (mask != 0).long().argmax(dim=1, keepdim=True)  # column, (B, 1)
        place = torch.arange(n, device=tokens.device)
        check_tokens(tokens, self.config.vocab_size)  # before `begin`, which nothing would undo
        moved = tokens.gather(1, (place + first_text) % n)
        moved, _ = state.begin(moved, (mask != 0).sum(dim=1).tolist())
        states = self.decoder.states(moved, state=state)
        # The states of padding tokens have no meaning, and nothing reads them.
        columns = ((place - first_text) % n).clamp(max=moved.shape[1] - 1)
        return states.gather(1, columns[..., None].expand(-1, -1, states.shape[2]))


def _starts(
    places: Tensor | None, mask: Tensor | None, tokens: Tensor, read: int, least: int | Tensor
) -> Tensor | None:
    """Which tokens start a document after other text of their row, (B, n); None without positions.

    places: position_ids. read: columns in the cache. least: the tokens that each of its rows holds
    at least; a position before that starts a document too.
    """
    if places is None:
        return None
    starts = torch.cat((places[:, :1] < least, places.diff(dim=1) != 1), dim=1).expand(tokens.shape)
    if mask is not None:  # padding may have any position
        text = mask[:, -tokens.shape[1] :] != 0
        starts = starts & text & F.pad(text[:, :-1], (1, 0), value=1 if read else 0)
    return starts


def _documents(mask: Tensor | None, starts: Tensor | None) -> Documents | None:
    """The documents of a padding mask (B, T) and `_starts`; None if each row is one document.

    torch.compile does not know how many documents there are, so the number of tokens bounds it.
    """
    if mask is None and starts is None:
        return None
    begins, fits = starts, None
    if mask is not None:
        text = mask != 0
        before = F.pad(text[:, :-1], (1, 0))
        edges = text != before  # where text or padding begins
        begins = edges if starts is None else starts | edges
        # Every row's text is in one piece, and the mask holds only 0 and 1.
        fits = (((text & ~before).sum(1) == 1) & (mask == text).all(1)).all()
    if is_compiling():
        if fits is not None:
            torch._assert_async(
                fits, "a row of the padding mask has no text, gaps, or other numbers than 0 and 1"
            )
        return Documents.bounded(begins, begins.numel())
    if fits is not None and not fits:
        Documents.padded(mask)  # raises
    return Documents.of(begins.cumsum(1)) if begins[:, 1:].any() else None


class RelationForCausalLM(RelationPreTrainedModel, GenerationMixin):
    """The language model, from tokens to logits. The embedding's weight is the output matrix."""

    def __init__(self, config: RelationConfig):
        super().__init__(config)
        self.model = RelationModel(config)
        self.post_init()

    @classmethod
    def of(cls, decoder: Decoder, **options) -> "RelationForCausalLM":
        """Make a transformers model with copies of the weights of a `relation.nn.Decoder`.

        options: fields of the configuration, such as `eos_token_id`.
        """
        model = cls(RelationConfig.of(decoder.config, **options))
        weights = {name: weight.clone() for name, weight in decoder.state_dict().items()}
        model.model.decoder.load_state_dict(weights, assign=True)  # keeps devices and dtypes
        return model

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RelationCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        position_ids: Tensor | None = None,
        cache: RelationCache | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Return logits (B, T, V) of input_ids (B, T). Other arguments are as in `RelationModel`.

        labels: (B, T) int64, the tokens themselves, or -100 to ignore a token. `loss` is then the
        mean negative log-likelihood of each token given the tokens before it, in nat/token.
        logits_to_keep: return the logits of only this many last tokens (0: all), or of the columns
        (n,) that a tensor names.
        """
        given = (input_ids, attention_mask, past_key_values, use_cache, position_ids, cache)
        states, *maybe_cache = self.model(*given, return_dict=True, **options).to_tuple()
        kept = logits_to_keep
        columns = kept if isinstance(kept, Tensor) else slice(-kept, None)
        logits = self.model.decoder.logits(states[:, columns])
        loss = None
        if labels is not None:
            loss = self.loss_function(logits, labels, self.config.vocab_size, **options)
        return CausalLMOutputWithPast(loss, logits, *maybe_cache)


AutoConfig.register(RelationConfig.model_type, RelationConfig)
AutoModel.register(RelationConfig, RelationModel)
AutoModelForCausalLM.register(RelationConfig, RelationForCausalLM)
# Trainer's label smoothing shifts the labels of the models listed here, and only of these.
MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[RelationConfig.model_type] = RelationForCausalLM.__name__
