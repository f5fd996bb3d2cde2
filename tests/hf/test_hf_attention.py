"""attn_implementation="relation": Full Relation in a Llama, by its equation and with caches."""

from functools import partial

import peft
import pytest
import torch
from conftest import refusal
from equations import assert_close, normal
from models import TOKENS
from test_hf import close, generated, left_padded, prompts, transformers
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from relation import Documents, ops
from relation.hf import add_lambda
from relation.hf.attention import relation_attention

LAM = torch.tensor(0.7, dtype=torch.float64)
PADDING = torch.ones_like(TOKENS)
PADDING[0, :5] = 0
each_sharing = pytest.mark.parametrize("kv_heads", [4, 1])


def llama(kv_heads: int = 4, family: str = "Llama", width: int = 24):
    """A model in which every weight differs from its initial value."""
    sizes = {"vocab_size": 29, "hidden_size": width, "intermediate_size": 20}
    sizes |= {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": kv_heads}
    options = {"pad_token_id": 0, "eos_token_id": None, "attn_implementation": "relation"}
    config = getattr(transformers, f"{family}Config")(**sizes, **options)
    torch.manual_seed(3)
    model = add_lambda(getattr(transformers, f"{family}ForCausalLM")(config).eval(), 0.7)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.2 * torch.randn_like(p)
    return model


def made_by_transformers(text: Tensor | None, places: Tensor | None) -> Tensor:
    """The mask that a model gives its layers for padding or packed documents, (B, T) each."""
    config = transformers.LlamaConfig(attn_implementation="relation")
    embeddings = torch.empty(*(places if text is None else text).shape, 0)
    make = transformers.masking_utils.create_causal_mask
    return make(config, embeddings, text, None, position_ids=places)


def attention() -> torch.nn.Module:
    """An attention module with the attributes that the interface reads."""
    module = torch.nn.Module()
    module.layer_idx, module.lam = 0, torch.nn.Parameter(LAM.clone())
    return module


@each_sharing
@pytest.mark.parametrize("case", ["causal", "padding", "documents", "window", "cache"])
def test_what_is_computed_is_full_relation(kv_heads, case):
    """Compare with the operator and its documents; the window is wider than the text."""
    layer = attention()
    q, k, v = normal(2, 4, 9, 6, seed=1), *(normal(2, kv_heads, 9, 6, seed=s) for s in (2, 3))
    ids = torch.tensor([[0] * 4 + [1] * 5, [0] * 9])
    place = torch.arange(9)
    causal = place <= place[:, None]
    documents = Documents.of(ids) if case in ("padding", "documents") else None
    mask, rows, text = None, slice(0, 9), torch.ones(2, 9, dtype=torch.bool)
    if case == "padding":
        text[0, :4] = False
        mask = made_by_transformers(text, None)
    elif case == "documents":
        mask = made_by_transformers(None, documents.positions)
    elif case == "window":
        mask = (causal & (place > place[:, None] - 20)).expand(2, 1, -1, -1)
    elif case == "cache":
        mask, rows = causal.expand(2, 1, -1, -1)[:, :, 6:], slice(6, 9)
    expected = ops.full_relation(0.7 * q, k, v, layer.lam, documents=documents)[:, :, rows]
    actual, _ = relation_attention(layer, q[:, :, rows], k, v, mask, scaling=0.7 * 6**-0.5)
    shown = text[:, rows, None, None]
    assert_close(actual * shown, expected.transpose(1, 2) * shown, 9 + 6, scale=8)
    gradients = (torch.autograd.grad((y * shown.reshape(s)).square().sum(), layer.lam)[0]
                 for y, s in ((actual, (2, -1, 1, 1)), (expected, (2, 1, -1, 1))))  # fmt: skip
    assert_close(*gradients, 2 * 9 * 9, scale=8)


@each_sharing
def test_padding_and_caches_change_no_text(kv_heads):
    model, rows = llama(kv_heads), prompts()
    alone = [text for row in rows for text in generated(model, [row])]
    assert generated(model, rows) == alone
    assert generated(model, rows, use_cache=False) == alone
    static = {"cache_implementation": "static", "disable_compile": True}
    assert generated(model, rows, **static) == alone
    # With one new token, the static cache is as long as the prompt.
    one = generated(model, rows, max_new_tokens=1, **static)
    assert one == generated(model, rows, max_new_tokens=1)
    given = left_padded(rows)
    places = (given["attention_mask"].cumsum(1) - 1).clamp(min=0)
    with torch.no_grad():
        logits = model(**given, position_ids=places).logits
        for row, actual in zip(rows, logits, strict=True):
            close(actual[-len(row) :], model(row[None]).logits[0])


def padded_and_packed(T: int) -> list[dict[str, Tensor]]:
    ids = torch.randint(29, (2, T), generator=torch.Generator().manual_seed(2))
    mask = torch.ones_like(ids)
    mask[0, : T // 3] = 0
    places = torch.cat((torch.arange(T // 4), torch.arange(T - T // 4)))[None]
    return [{"input_ids": ids, "attention_mask": mask}, {"input_ids": ids, "position_ids": places}]


def test_compiled_without_a_break_it_is_the_same():
    """Without a graph break, so finding the documents does not wait for the GPU."""
    model = llama(2)
    model.model.layers = model.model.layers[:1]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    padded, packed = padded_and_packed(11)
    for given in (packed, padded):
        actual, expected = (call(**given, use_cache=False).logits for call in (compiled, model))
        rows = given.get("attention_mask", torch.ones_like(given["input_ids"])).bool()
        close(actual[rows], expected[rows])
    with pytest.raises(RuntimeError, match="padding interrupts"):
        compiled(**padded | {"attention_mask": TOKENS.ne(TOKENS[0, 5]).long()}, use_cache=False)


class Largest(TorchDispatchMode):
    """Records the number of elements of the largest new tensor."""

    def __init__(self):
        super().__init__()
        self.numel = 0

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        if isinstance(result, Tensor) and not function.is_view:
            self.numel = max(self.numel, result.numel())
        return result


def test_documents_need_no_square_of_the_length():
    """The largest tensors are tiles of 128 x 128 scores for 4 heads."""
    model, T = llama(4), 600
    for given in padded_and_packed(T):
        with torch.no_grad(), Largest() as largest:
            model.model(**given, use_cache=False)
        assert largest.numel < T * T
    # Padding inside a text separates no documents: every token sees all text before it. Padding
    # that sees nothing gives no NaN, which all later tokens would read.
    mask = torch.tensor([[0, 1, 1, 0, 1, 1]])
    given = {"input_ids": TOKENS[:1, :6], "position_ids": (mask.cumsum(1) - 1).clamp(min=0)}
    actual = model(**given, attention_mask=mask).logits[0, 4:]
    close(actual, model(TOKENS[:1, [1, 2, 4, 5]]).logits[0, 2:])


@pytest.mark.parametrize("step", [
    ops.attention_step,
    lambda q, k, v: ops.full_relation_step(q, k, v, LAM),
    lambda q, k, v: relation_attention(attention(), q, k, v, None)[0],
])  # fmt: skip
def test_grouped_heads_decode_without_copying_history(step):
    q, k, v = normal(1, 8, 1, 16, seed=1), *(normal(1, 2, 900, 16, seed=s) for s in (2, 3))
    with torch.no_grad(), Largest() as largest:
        actual = step(q, k, v)
    assert largest.numel <= 8 * 900 < k.numel()
    assert_close(actual, step(q, *(ops.for_heads(x, 8) for x in (k, v))), 900 + 16, scale=8)


@pytest.mark.gpu
@each_sharing
def test_a_gpu_writes_the_texts_of_a_cpu_and_trains(kv_heads):
    model = llama(kv_heads, width=64)
    expected = generated(model, prompts())
    assert generated(model.cuda(), prompts()) == expected
    tokens = TOKENS.cuda()
    model.train()(tokens, attention_mask=PADDING.cuda(), labels=tokens).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_lambda_is_trained_saved_and_read_back(tmp_path):
    model = llama(2).train()
    model(TOKENS, attention_mask=PADDING, labels=TOKENS).loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    values = [layer.self_attn.lam for layer in model.model.layers]
    assert all(value.grad != 0 and value.dtype == torch.float32 for value in values)
    model.eval().save_pretrained(tmp_path)
    # A reloaded model asks for its lambdas. It does not run softmax on Relation's weights.
    load = transformers.AutoModelForCausalLM.from_pretrained
    loaded, elsewhere = load(tmp_path), load(tmp_path)
    assert "add_lambda" in refusal(lambda: loaded(TOKENS))
    # The base model's parameter names have no prefix.
    base = add_lambda(transformers.AutoModel.from_pretrained(tmp_path))
    assert torch.equal(base(TOKENS)[0], model.model(TOKENS)[0])
    # add_lambda reads the folder the model was loaded from. A second call keeps the values.
    assert torch.equal(add_lambda(loaded)(TOKENS).logits, model(TOKENS).logits)
    saved = values[1].item()
    values[1].data.fill_(0.9)
    assert add_lambda(model, 0.1).model.layers[1].self_attn.lam == 0.9
    assert add_lambda(model, saved=tmp_path).model.layers[1].self_attn.lam == saved
    attention = load(tmp_path, attn_implementation="sdpa")
    message = refusal(lambda: add_lambda(attention, saved=tmp_path))
    assert "layers.0.self_attn runs the attention 'sdpa'" in message
    # As for a model of the hub: no local folder has the model's name.
    elsewhere.config._name_or_path = "owner/name"
    for given in ({}, {"saved": tmp_path / "elsewhere"}):
        assert "give saved=" in refusal(lambda given=given: add_lambda(elsewhere, **given))
    assert add_lambda(elsewhere, 0.25).model.layers[0].self_attn.lam == 0.25


def test_a_new_models_lambdas_come_from_no_folder(tmp_path, monkeypatch):
    llama(2).save_pretrained(tmp_path)
    monkeypatch.chdir(tmp_path)
    config = llama(2).config
    config._name_or_path = ""
    model = add_lambda(transformers.LlamaForCausalLM(config), 0.25)
    assert [layer.self_attn.lam.item() for layer in model.model.layers] == [0.25] * 2


def test_lambdas_of_another_variant_are_not_taken(tmp_path):
    """A folder may hold several variants of the weights; nothing says which of them was loaded."""
    model, load = llama(2), transformers.LlamaForCausalLM.from_pretrained
    model.save_pretrained(tmp_path)
    assert add_lambda(load(tmp_path)).model.layers[0].self_attn.lam == (
        model.model.layers[0].self_attn.lam
    )
    with torch.no_grad():
        model.model.layers[0].self_attn.lam.fill_(5.0)
    model.save_pretrained(tmp_path, variant="ema")
    loaded = load(tmp_path, variant="ema")
    assert "different values of model.layers.0" in refusal(lambda: add_lambda(loaded))
    add_lambda(loaded, saved=tmp_path / "model.ema.safetensors")
    assert torch.equal(add_lambda(loaded)(TOKENS).logits, model(TOKENS).logits)


def test_a_language_model_below_a_vision_model_is_loaded_with_relation(tmp_path):
    """Not with the attention of the whole model: softmax would run on Relation's weights."""
    sizes = {"hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    sizes |= {"num_attention_heads": 2, "image_size": 8, "patch_size": 4}
    vision = transformers.CLIPVisionConfig(**sizes)
    text = llama(2).config
    config = transformers.LlavaConfig(vision_config=vision, text_config=text, image_token_index=3)
    given = {"text_config": "relation", "vision_config": "sdpa"}
    make = transformers.AutoModelForImageTextToText
    model = add_lambda(make.from_config(config, attn_implementation=given), 0.7)
    model.save_pretrained(tmp_path)
    loaded = make.from_pretrained(tmp_path)
    parts = loaded.config.text_config, loaded.config.vision_config
    assert [part._attn_implementation for part in parts] == ["relation", "sdpa"]
    assert "add_lambda" in refusal(lambda: loaded(TOKENS))
    # The files name the layers in another way than the model does.
    assert torch.equal(add_lambda(loaded)(TOKENS).logits, model(TOKENS).logits)


def test_lambda_below_a_reloaded_adapter_is_the_saved_one(tmp_path):
    llama(2).save_pretrained(tmp_path / "base")
    base = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    adapters = peft.LoraConfig(target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(add_lambda(base), adapters)
    model.save_pretrained(tmp_path / "adapters")
    again = peft.AutoPeftModelForCausalLM.from_pretrained(tmp_path / "adapters")
    assert add_lambda(again) is again
    assert torch.equal(again(TOKENS).logits, model(TOKENS).logits)


def test_under_autocast_it_trains_and_writes():
    """RoPE runs in FP32, so Q and K have a wider dtype than V."""
    model, given = llama(2), {"attention_mask": PADDING, "labels": TOKENS}
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(TOKENS, **given).loss
        cached = model.generate(TOKENS, attention_mask=PADDING, max_new_tokens=3, do_sample=False)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())
    assert loss.item() == pytest.approx(model(TOKENS, **given).loss.item(), rel=0.02)
    assert cached.shape == (len(TOKENS), TOKENS.shape[1] + 3)


@pytest.mark.parametrize("family", ["Mistral", "Qwen2", "JetMoe"])
def test_other_families_run_it(family):
    model = llama(2, family)
    assert generated(model, prompts()) == generated(model, prompts(), use_cache=False)


def test_a_sliding_window_hides_the_tokens_before_it():
    model, place = llama(2, "Mistral"), torch.arange(11)
    mask = (place <= place[:, None]) & (place > place[:, None] - 4)
    logits = []
    for window, given in ((4, None), (None, mask.expand(2, 1, -1, -1)), (None, None)):
        model.config.sliding_window = window
        logits.append(model(TOKENS, attention_mask=given).logits)
    torch.testing.assert_close(logits[0], logits[1])
    assert (logits[0] - logits[2]).abs().max() > 0.01


def attend(**options) -> Tensor:
    x = normal(1, 2, 3, 6, seed=1)
    given = {"query": x, "key": x, "value": x, "attention_mask": None} | options
    return relation_attention(attention(), **given)


def see() -> None:
    """A vision model, whose attention modules have no layer_idx."""
    sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 4}
    config = transformers.ViTConfig(**sizes, patch_size=2, attn_implementation="relation")
    transformers.ViTModel(config)(torch.zeros(1, 3, 4, 4))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: attend(dropout=0.1), "dropout"),
        (lambda: attend(softcap=50.0), "capping"),
        (lambda: attend(s_aux=torch.zeros(2)), "sinks"),
        (lambda: attend(position_bias=torch.zeros(1, 2, 3, 3)), "no bias of scores"),
        (lambda: attend(indices=torch.zeros(1, 3, 1)), "no keys that an indexer chooses"),
        (lambda: attend(value=normal(1, 2, 3, 4, seed=1)), "no values of another width"),
        (lambda: attend(is_causal=False), "causal"),
        (lambda: attend(output_attentions=True), "no weights to return"),
        (lambda: llama()(TOKENS[:, :6], torch.ones(1, 1, 6, 5).bool()), "(1, 1, 6, 5); give "),
        (lambda: llama()(TOKENS[:, :6], torch.ones(2, 5)), "(2, 5); give the padding, (2, 6)"),
        *(
            (lambda m=m: llama()(TOKENS[:, :6], m), f"{tuple(m.shape)}; give")
            for m in (torch.eye(6)[None, None].int(), torch.ones(1, 1, 1, 6).int())
        ),
        (lambda: add_lambda(torch.nn.Linear(2, 2)), "Llama-type"),
        (see, "Attention has no lambda"),
    ],
)
def test_what_relation_has_not_is_refused(call, message):
    assert message in refusal(call)


def test_a_model_gets_the_causal_mask_that_it_wants_to_change():
    config = transformers.LlamaConfig(attn_implementation="relation")
    make = partial(transformers.masking_utils.create_causal_mask, allow_is_causal_skip=False)
    mask = make(config, torch.empty(2, 5, 0), PADDING[:, 2:7].bool(), None)
    expected = torch.ones(5, 5).tril().bool() & PADDING[:, None, None, 2:7].bool()
    assert torch.equal(mask, expected)


def test_continuous_batching_does_not_run_softmax(monkeypatch):
    module = "transformers.generation.continuous_batching.continuous_api"
    monkeypatch.setattr(f"{module}.is_flash_attn_2_available", lambda **options: True)
    with pytest.raises(ValueError, match="relation is not supported"):
        llama().generate_batch([[1, 2]])


@pytest.mark.parametrize(("first", "wrong"), [
    (0, lambda mask: mask.tril(-1)),
    (0, lambda mask: mask & (torch.arange(9) != 6) | mask.tril(-1)),  # token 6 does not see itself
    (4, lambda mask: mask | (torch.arange(9) < 6)),  # all tokens see the first six
    (4, torch.ones_like),
])  # fmt: skip
def test_a_mask_that_is_not_causal_is_refused(first, wrong):
    """A mask for the tokens from `first` on, which was causal and is changed in place."""
    x, mask = normal(1, 2, 9, 6, seed=1), torch.ones(1, 1, 9, 9).tril()[:, :, first:].bool()
    call = partial(relation_attention, attention(), x[:, :, first:], x, x, mask)
    call()
    mask.copy_(wrong(mask))
    assert "sees later ones, or not itself" in refusal(call)


def test_blocks_after_a_static_cache_are_read_as_one_text():
    model, text = llama(), torch.arange(1, 13)[None]
    cache = transformers.StaticCache(model.config, max_cache_len=20)
    with torch.no_grad():
        whole = model(text, use_cache=False).logits
        blocks = [model(block, past_key_values=cache).logits for block in text.split(4, dim=1)]
    assert_close(torch.cat(blocks, dim=1), whole, terms=48)  # sums of two layers of width 24
