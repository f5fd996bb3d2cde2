"""`attn_implementation="relation"`: Full Relation in place of attention in Llama-type models.

Q, K and V are p1, p2 and information, after the model's own RoPE; there are no mixing angles. Each
attention module gets the count calibration lambda by `add_lambda`.
"""

from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from relation.errors import InputError
from relation.kernels.documents import Documents
from relation.ops import for_heads, scores
from relation.ops.backends import Automatic
from relation.ops.full import flow_of_rows

NAME = "relation"
TAU = 2.0


def add_lambda(
    model: PreTrainedModel, init: float = 0.5, saved: str | Path | None = None
) -> PreTrainedModel:
    """Give every attention module of a model its `lam` (1,), a trained FP32 parameter.

    Call it before training, as an optimiser takes the parameters that it finds. `save_pretrained`
    writes them and `from_pretrained` passes over them: their values come from the folder `saved`,
    by default the one that the model was loaded from; where that has none they start at `init`. A
    module that has a lambda keeps it, unless `saved` names a folder. Returns the model. Raises
    InputError for a model without such modules or with another attention, and for a folder `saved`
    that lacks a value.
    """
    modules = {name: module for name, module in model.named_modules() if _attends(module)}
    if not modules:
        raise InputError(
            f"{type(model).__name__} has no causal attention modules with a layer_idx; "
            "attn_implementation='relation' is for Llama-type models"
        )
    values = _saved(Path(model.config._name_or_path if saved is None else saved))
    for name, module in modules.items():
        attention = getattr(module, "config", model.config)._attn_implementation
        if attention != NAME:
            raise InputError(
                f"{name} runs the attention {attention!r}, which has no lambda; "
                "give attn_implementation='relation' to from_pretrained or the configuration"
            )
        if saved is not None and f"{name}.lam" not in values:
            raise InputError(f"{saved} has no {name}.lam; give the folder of such a model")
    for name, module in modules.items():
        if saved is None and hasattr(module, "lam"):
            continue
        device = next(module.parameters()).device
        value = torch.tensor([values.get(f"{name}.lam", init)], dtype=torch.float32, device=device)
        module.lam = nn.Parameter(value)
    return model


def _attends(module: nn.Module) -> bool:
    return hasattr(module, "layer_idx") and getattr(module, "is_causal", False)


def _saved(folder: Path) -> dict[str, float]:
    """The values of `lam` in a folder that `save_pretrained` wrote, by name; none elsewhere."""
    found = {}
    for path in folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            names = [name for name in file.keys() if name.endswith(".lam")]  # noqa: SIM118
            found |= {name: file.get_tensor(name).item() for name in names}
    return found


_OPERATOR = Automatic("full")


def _documents(visible: Tensor) -> Documents | None:
    """The documents whose tokens see what `visible` (B, 1, T, T) says; None where there are none.

    Padding sees nothing there, and becomes documents of one token each.
    """
    place = torch.arange(visible.shape[-1], device=visible.device)
    seen = visible[:, 0].sum(-1)
    starts = torch.where(seen > 0, visible[:, 0].int().argmax(-1), place)
    documents = Documents.of((starts == place).long().cumsum(1))
    is_whole = (seen == 0) | (seen == place - starts + 1)
    return documents if bool((is_whole & (documents.starts == starts)).all()) else None


def _masked(p1: Tensor, p2: Tensor, info: Tensor, lam: Tensor, visible: Tensor | None) -> Tensor:
    """Full Relation, (B, H, n, D), of n tokens that see what `visible` (B, 1, n, T) says.

    The last token that one sees is itself. None: the n tokens are one, and it sees all. A token
    that sees nothing is padding: it gets something finite.
    """
    U = scores(p1, p2)
    if visible is None:
        visible = torch.ones(1, 1, *U.shape[-2:], dtype=torch.bool, device=U.device)
    visible = visible | ~visible.any(-1, keepdim=True)
    own = visible.shape[-1] - 1 - visible.flip(-1).int().argmax(-1, keepdim=True)
    own = own.expand(*U.shape[:3], 1)
    flow = flow_of_rows(U, lam, TAU, own, visible.sum(-1, keepdim=True), ~visible)
    return flow.to(info.dtype) @ for_heads(info, p1.shape[1])


def relation_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **options,
) -> tuple[Tensor, None]:
    """What transformers calls: Full Relation of (B, H, n, D), and (B, n, H, D) back.

    key, value: (B, H or a divisor of it, T, D), those of the cache first. attention_mask: bool,
    (B, 1, n, T), or None for all tokens before. Whole rows and documents run the kernels, tokens
    that follow a cache plain PyTorch, O(n T). Raises InputError for a module without `lam`,
    dropout, soft capping or attention that is not causal.
    """
    lam = getattr(module, "lam", None)
    if lam is None:
        raise InputError(
            f"layer {module.layer_idx} has no lambda; call relation.hf.add_lambda(model) first"
        )
    for name, used in (
        ("dropout of attention weights", dropout),
        ("soft capping of scores", options.get("softcap")),
        ("attention that is not causal", options.get("is_causal") is False),
    ):
        if used:
            raise InputError(f"attn_implementation='relation' has no {name}; switch it off")
    width, lam = query.shape[-1], lam.float() if lam.dtype != torch.float64 else lam
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    n = query.shape[2]
    if attention_mask is None and n > 1:
        # The keys of a static cache go on past the prompt that it has just read.
        key, value = key[:, :, :n], value[:, :, :n]
    whole, masked = n == key.shape[2], attention_mask is not None
    documents = _documents(attention_mask) if whole and masked else None
    if whole and (documents is not None or not masked):
        y = _OPERATOR(query, key, value, lam, TAU, documents=documents)
    else:
        y = _masked(query, key, value, lam, attention_mask)
    return y.transpose(1, 2), None


def relation_mask(*inputs, **options) -> Tensor | None:
    """transformers' boolean mask, in which padding sees nothing; None where it is only causal."""
    return sdpa_mask(*inputs, **(options | {"allow_torch_fix": False}))


AttentionInterface.register(NAME, relation_attention)
AttentionMaskInterface.register(NAME, relation_mask)
