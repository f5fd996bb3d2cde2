"""`attn_implementation="relation"`: Full Relation instead of attention in Llama-type models.

Q, K and V, after the model's own RoPE, are p1, p2 and information. There is no Givens mixing.
`add_lambda` gives each attention module its count calibration lambda.
"""

from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from safetensors import safe_open
from torch import Tensor, nn
from torch.compiler import is_compiling
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, PreTrainedModel
from transformers.masking_utils import AttentionMaskInterface, causal_mask_function, sdpa_mask

from relation.errors import InputError
from relation.kernels.documents import Documents
from relation.ops import full_relation_step
from relation.ops.backends import Operator
from relation.ops.precision import projection_dtype

NAME = "relation"


def add_lambda(
    model: PreTrainedModel, init: float | None = None, saved: str | Path | None = None
) -> PreTrainedModel:
    """Give every attention module of a model a `lam` (1,), a trained FP32 parameter; return model.

    Call it before you make the optimiser. `save_pretrained` writes the lambdas, and config.json
    then names Relation. `from_pretrained` does not load them: `add_lambda` reads them from `saved`,
    a folder or a file of safetensors, by default the folder that the model or its configuration
    comes from. If it holds none, they start at `init` (None: 0.5). A module keeps the lambda that
    it has, unless `saved` is given. Raises InputError for a model without such modules or with
    another attention, and if files of the folder have different lambdas. Raises it also if a lambda
    that must be loaded is missing: with `saved`, or, without `init`, for a saved model.
    """
    base = model.get_base_model() if hasattr(model, "get_base_model") else model  # below PEFT
    modules = {
        name: module
        for name, module in base.named_modules()
        if hasattr(module, "layer_idx") and getattr(module, "is_causal", False)
    }
    if not modules:
        raise InputError(
            f"{type(base).__name__} has no causal attention modules with a layer_idx; "
            "attn_implementation='relation' is for Llama-type models"
        )
    for name, module in modules.items():
        attention = module.config._attn_implementation
        if attention != NAME:
            raise InputError(
                f"{name} runs the attention {attention!r}, which has no lambda; "
                "give attn_implementation='relation' to from_pretrained or the configuration"
            )
    # The lambda of each module that gets one. Nothing changes before all are known.
    new = {name: m for name, m in modules.items() if saved is not None or not hasattr(m, "lam")}
    # The path of a model made from a new configuration is "".
    folder = base.config._name_or_path if saved is None else saved
    prefix = f"{base.base_model_prefix}."
    stored = _saved_lambdas(Path(folder), prefix) if folder and new else {}
    values = {}
    for name, module in new.items():
        is_saved = getattr(module.config, "has_lambda", False)
        key = _short_name(f"{name}.lam", prefix)
        if key not in stored and (saved is not None or (is_saved and init is None)):
            raise InputError(
                f"there is no {name}.lam in {folder or 'any folder'}; give saved=, the folder of "
                "safetensors that has it, or init= to start from that value"
            )
        values[module] = stored.get(key, 0.5 if init is None else init)
    for module, value in values.items():
        # None if the weights are offloaded: lambda then stays on the CPU.
        device = next((p.device for p in module.parameters() if not p.is_meta), None)
        module.lam = nn.Parameter(torch.tensor([value], dtype=torch.float32, device=device))
    # config.json stores this: a loaded model runs Relation, or fails without relation.hf.
    for module in modules.values():
        module.config.attn_implementation, module.config.has_lambda = NAME, True
    # `generate_batch` would change to FlashAttention, so to softmax, in a model that supports it.
    base._supports_flash_attn = False
    # A loaded model gives its attention to all parts of its configuration, except those named here.
    parts = {name: getattr(base.config, name, None) for name in base.config.sub_configs}
    parts = {name: NAME for name, part in parts.items() if getattr(part, "has_lambda", False)}
    if parts:
        base.config.attn_implementation = parts
    return model


def _short_name(name: str, prefix: str) -> str:
    """A lambda's name without the names of the models around it.

    The base model's names have no prefix, and transformers renames the parts of multimodal models
    when it saves them.
    """
    parts = name.removeprefix(prefix).split(".")
    return ".".join(part for part in parts if part not in ("model", "language_model"))


def _saved_lambdas(folder: Path, prefix: str) -> dict[str, float]:
    """Read the `lam` values from a folder of `save_pretrained`, by `_short_name`.

    Raises InputError if two files, such as variants of the weights, have different values.
    """
    values = {}
    for path in [folder] if folder.is_file() else folder.glob("*.safetensors"):
        with safe_open(path, framework="pt") as file:
            for name in [name for name in file.keys() if name.endswith(".lam")]:  # noqa: SIM118
                value = file.get_tensor(name).item()
                if values.setdefault(_short_name(name, prefix), value) != value:
                    raise InputError(
                        f"files in {folder} have different values of {name}; give saved=, the file "
                        "or a folder of only the weights that the model has"
                    )
    return values


def relation_mask(**options: Any) -> Tensor | None:
    """Return the mask that all layers of a forward share; transformers calls it.

    None: causal. int16, (B, 1, 1, T): 1 at the first token of each document, for blocks that start
    a row; its memory is linear in T, and each padding token is a document. It is a tensor because
    `generate` takes nothing else, and int16 so that a user's padding mask is not taken for it.
    bool, (B, 1, n, T): transformers' own mask, in other cases: after cached tokens, for a window
    within the row, or if padding interrupts text; padding sees nothing. Waits for the GPU once.
    Compiled, it does not wait, and interrupted text is a RuntimeError.
    """
    n, offset, device = options["q_length"], options["q_offset"], options["device"]
    sees, text = options.get("mask_function"), options.get("attention_mask")
    traced = is_compiling()

    # If documents cannot describe what tokens see, return transformers' own mask.
    is_first = n > 1 and not (traced and isinstance(offset, Tensor)) and offset == 0
    window = options.get("local_size")
    is_narrow = window is not None and window <= n
    is_causal = options.get("allow_is_causal_skip", True)
    # Some models change the causal mask themselves, and so ask for one in every case.
    is_changed = not is_causal and sees is causal_mask_function
    if not is_first or is_narrow or is_changed or options.get("use_vmap"):
        return sdpa_mask(**options)
    if is_causal and text is None:
        return None

    # starts: which tokens start a document, (B, T). wrong: whether documents cannot describe a row.
    row = torch.arange(options["batch_size"], device=device)[:, None]
    place = torch.arange(n, device=device)
    # A token that does not see its left neighbour starts a document.
    starts = ~sees(row, 0, place, (place - 1).clamp(min=0)).expand(len(row), n)
    # A token that sees its right neighbour sees a later one.
    wrong = starts.new_zeros(()) if is_causal else sees(row, 0, place[:-1], place[1:]).any()
    if text is not None:
        text = text[:, :n]  # with a static cache the mask is longer than the prompt
        # Not `in`, which torch.compile answers wrongly for symbolic shapes.
        if text.shape != starts.shape and text.shape != (1, n):
            shape, fits = tuple(text.shape), tuple(starts.shape)
            raise InputError(f"attention_mask has shape {shape}; give the padding, {fits}")
        before = F.pad(text[:, :-1], (1, 0))
        starts = starts | ~text | ~before  # each padding token is a document
        wrong = wrong | ((text & ~before).sum(1) > 1).any()
    if traced:
        torch._assert_async(~wrong, "padding interrupts a row's text, or tokens see later ones")
    else:
        is_wrong, has_documents = torch.stack((wrong, starts[:, 1:].any())).tolist()
        if is_wrong:
            return sdpa_mask(**options)
        if not has_documents:
            return None
    return starts[:, None, None].short()


_OPERATOR = Operator("full")
_DOCUMENTS = WeakTensorKeyDictionary()  # from a mask in use to its documents
_CAUSAL = WeakTensorKeyDictionary()  # from a mask found causal to its version at that time


def _documents(mask: Tensor) -> Documents:
    """The documents that an int16 mask of `relation_mask` describes, made once for all layers."""
    if is_compiling():
        return Documents.bounded(mask[:, 0, 0] == 1, mask.numel())
    if mask not in _DOCUMENTS:
        _DOCUMENTS[mask] = Documents.bounded(mask[:, 0, 0] == 1, mask.numel())
    return _DOCUMENTS[mask]


def refuse_if(wrong: Tensor, problem: str) -> None:
    """Raise InputError if `wrong`, () bool, is true; compiled code raises RuntimeError instead."""
    if is_compiling():
        torch._assert_async(~wrong, problem)
    elif wrong:
        raise InputError(problem)


def _check_mask(mask: Tensor, n: int, T: int) -> None:
    """Raise InputError unless a mask is bool, (B, 1, n, T), and causal: tokens see no later ones.

    Each token must see itself, except padding, which no token sees. A mask of one token, n = 1, is
    not checked. Waits for a GPU once per mask; in compiled code the error is a RuntimeError.
    """
    if mask.dtype != torch.bool or mask.ndim != 4 or mask.shape[2:] != (n, T):
        raise InputError(
            f"attention_mask is {mask.dtype}, {tuple(mask.shape)}; give the padding, (B, T), or "
            f"bool, (B, 1, {n}, {T})"
        )
    version = None if is_compiling() or mask.is_inference() else mask._version
    if n == 1 or (version is not None and _CAUSAL.get(mask) == version):
        return
    row, column = (torch.arange(size, device=mask.device) for size in (n, T))
    ahead = torch.where(mask, column, -1).amax(-1) - row  # of a row's last column, (B, 1, n)
    # The tokens' own columns form a diagonal. A static cache has further columns after it.
    diagonal = ahead.amax().clamp(0, T - n)
    is_text = mask.any(-2)[..., diagonal + row]
    wrong = ((ahead > diagonal) | ((ahead < diagonal) & is_text)).any()
    refuse_if(wrong, "a token sees later ones, or not itself; give a causal attention_mask")
    if version is not None:
        _CAUSAL[mask] = version


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
    """Compute Full Relation when transformers calls attention: (B, n, H, D), and None for weights.

    query: (B, H, n, D). key, value: (B, H or a divisor of it, T, D), the cached tokens first.
    attention_mask: the result of `relation_mask`, or a bool mask as `_check_mask` describes it.
    Blocks that start a row run the fastest backend. Single tokens and blocks with a bool mask run
    plain PyTorch, O(n T). Raises InputError for a module without `lam`, for another mask, and for
    all that Relation has not, such as dropout, attention sinks or a request for weights.
    """
    if (lam := getattr(module, "lam", None)) is None:
        raise InputError(
            f"{type(module).__name__} has no lambda; call relation.hf.add_lambda(model) first, "
            "which gives one to causal attention with a layer_idx"
        )
    given = {name for name, x in options.items() if x is not None}
    for name, used in (
        ("dropout of attention weights", dropout),
        ("soft capping of scores", options.get("softcap")),
        ("attention sinks", given & {"s_aux", "sinks"}),
        ("bias of scores", "position_bias" in given),
        ("keys that an indexer chooses", given & {"indices", "block_indices"}),
        ("values of another width than Q and K", value.shape[-1] != query.shape[-1]),
        ("attention that is not causal", options.get("is_causal") is False),
        ("weights to return (output_attentions)", options.get("output_attentions")),
    ):
        if used:
            raise InputError(f"attn_implementation='relation' has no {name}; do without it")
    # Under autocast Q and K come from RoPE in FP32, and V in 16 bits.
    query, key, value = (x.to(projection_dtype(x)) for x in (query, key, value))
    width, wide = query.shape[-1], torch.promote_types(lam.dtype, torch.float32)
    lam = lam.to(query.device, wide)
    if scaling is not None and scaling != width**-0.5:
        query = query * (scaling * width**0.5)
    n, mask, documents = query.shape[2], attention_mask, None
    if mask is not None and mask.dtype == torch.int16 and n > 1 and mask.shape[1:3] == (1, 1):
        documents, mask = _documents(mask), None
    elif mask is not None:
        _check_mask(mask, n, key.shape[2])
        # A token that sees nothing is padding. Let it see all tokens, so its result is finite.
        mask = mask | ~mask.any(-1, keepdim=True)
    if mask is None and n > 1:
        # A static cache has more keys than the prompt has tokens.
        key, value = key[:, :, :n], value[:, :, :n]
        y = _OPERATOR(query, key, value, lam, documents=documents)
    else:
        y = full_relation_step(query, key, value, lam, visible=mask)
    return y.transpose(1, 2).contiguous(), None  # some families call `view`


AttentionInterface.register(NAME, relation_attention)
AttentionMaskInterface.register(NAME, relation_mask)
