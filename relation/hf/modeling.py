"""The paper's decoder as models of transformers, in the form whose projections are modules."""

from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils import can_return_tuple

from relation.errors import InputError
from relation.hf.configuration import RelationConfig
from relation.kernels.documents import Documents
from relation.nn import Decoder, DecodeState
from relation.nn.execution import ByDevice
from relation.nn.mixers import FullRelationMixer, InformationMixer, LinearRelationMixer


class RelationCache:
    """The `past_key_values` of a Relation model: its decode state, one cache a layer.

    MHA and Full layers keep two states a token, a Linear one a matrix a head.
    """

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
    # A Linear layer's state cannot go back by a token, as assisted generation would have it.
    _is_stateful = True

    @classmethod
    def _supports_default_dynamic_cache(cls) -> bool:
        return False

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, FullRelationMixer):
            counts = isinstance(module.lam, nn.Parameter)
            nn.init.constant_(module.lam, self.config.lambda_init if counts else 0.0)
        if isinstance(module, InformationMixer) and module.mixes:
            nn.init.zeros_(module.theta)
        if isinstance(module, LinearRelationMixer):
            nn.init.normal_(module.retention_up, std=self.config.init_std)
            drawn = {name: getattr(module, name) for name in ("a_log", "dt_bias")}
            kept = {
                name: parameter.clone()
                for name, parameter in drawn.items()
                if getattr(parameter, "_is_hf_initialized", False)
            }
            module.draw_vectors(self.config.model(), lambda name, shape: torch.rand(shape))
            for name, values in kept.items():
                drawn[name].copy_(values)


class RelationModel(RelationPreTrainedModel):
    """The decoder without its output matrix: tokens to states.

    Its `decoder` is `relation.nn.Decoder` in the plain form, run by the backends of `ByDevice`.
    """

    def __init__(self, config: RelationConfig):
        super().__init__(config)
        self.decoder = Decoder(config.model(), ByDevice(), plain=True)
        self.post_init()

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding, whose weight is the output matrix too."""
        return self.decoder.embedding

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding in its place."""
        self.decoder.embedding = value

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RelationCache | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        """The last norm's output, (B, T, d), of input_ids (B, T) int64.

        attention_mask: (B, T), 0 for padding at either side; with a cache also (B, read + T).
        past_key_values: the tokens read so far, which takes these in; with `use_cache` an empty one
        is made. With a cache nothing is differentiable. Raises InputError for a row without text,
        text that padding interrupts, or padding after the first block of a cache.
        """
        if options.get("inputs_embeds") is not None:
            raise InputError("a Relation model takes input_ids, not inputs_embeds")
        if use_cache and past_key_values is None:
            past_key_values = RelationCache(self.config)
        if past_key_values is None:
            states = self.decoder.states(input_ids, _documents(attention_mask))
        else:
            states = self._continue(input_ids, attention_mask, past_key_values.state)
            past_key_values.columns += input_ids.shape[1]
        return BaseModelOutputWithPast(last_hidden_state=states, past_key_values=past_key_values)

    @torch.no_grad()
    def _continue(self, tokens: Tensor, mask: Tensor | None, state: DecodeState) -> Tensor:
        """States (B, n, d) of tokens that follow those that `state` has read."""
        n = tokens.shape[1]
        padded = mask is not None and not bool(mask[:, -n:].all())
        if not padded:
            return self.decoder.decode_states(tokens, state)
        if state.length:
            raise InputError(
                f"{n} tokens after {state.length} read have padding among them; padding belongs to "
                "the first block of a cache"
            )
        Documents.padded(mask)  # raises where text is missing or interrupted
        # A decode state wants every row to begin at once: rows move left, and their states back.
        first = (mask != 0).long().argmax(dim=1, keepdim=True)
        place = torch.arange(n, device=tokens.device)
        state.begin((mask != 0).sum(dim=1))
        states = self.decoder.decode_states(tokens.gather(1, (place + first) % n), state)
        # Padding's own states are those of a document by itself, which nobody reads.
        moved = ((place - first) % n)[..., None].expand(-1, -1, states.shape[2])
        return states.gather(1, moved)


def _documents(mask: Tensor | None) -> Documents | None:
    """What a padding mask (B, T) lets tokens see; None where nothing is padded."""
    if mask is None or bool(mask.all()):
        return None
    return Documents.padded(mask)


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

    def get_input_embeddings(self) -> nn.Embedding:
        """The embedding, whose weight is the output matrix too."""
        return self.model.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Put another embedding in its place, and so another output matrix."""
        self.model.set_input_embeddings(value)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        past_key_values: RelationCache | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int = 0,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits (B, T, V) of input_ids (B, T); the other arguments as `RelationModel` takes them.

        labels: (B, T) int64, the tokens themselves, -100 where they do not count: `loss` is then
        the mean negative log-likelihood of each from those before it, nat/token. logits_to_keep:
        only the last so many tokens' logits; 0 keeps all.
        """
        options.pop("return_dict", None)
        outputs = self.model(
            input_ids, attention_mask, past_key_values, use_cache, **options, return_dict=True
        )
        logits = self.model.decoder.logits(outputs.last_hidden_state[:, -logits_to_keep:])
        loss = None
        if labels is not None:
            size = self.config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **options)
        return CausalLMOutputWithPast(
            loss=loss, logits=logits, past_key_values=outputs.past_key_values
        )

    def prepare_inputs_for_generation(
        self,
        input_ids: Tensor,
        past_key_values: RelationCache | None = None,
        attention_mask: Tensor | None = None,
        use_cache: bool | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The tokens that the cache has not read, for the forward's next call."""
        if past_key_values is not None:
            input_ids = input_ids[:, past_key_values.columns :]
        return {
            "input_ids": input_ids,
            "past_key_values": past_key_values,
            "attention_mask": attention_mask,
            "use_cache": use_cache,
            "logits_to_keep": 1,
        }


AutoModel.register(RelationConfig, RelationModel)
AutoModelForCausalLM.register(RelationConfig, RelationForCausalLM)
