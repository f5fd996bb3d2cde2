"""Relation in transformers: the decoder's numbers; saving, generation and training."""

from functools import partial

import numpy as np
import pytest
import torch
from conftest import refusal
from models import TOKENS, stirred
from torch import Tensor

from relation.nn import Decoder
from relation.nn.generate import Sampling, generate_batch, generate_tokens
from relation.variants import VARIANTS

transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed; pip install '.[hf]'"
)
hf = pytest.importorskip("relation.hf")

LAYOUTS = ("mha", "full", "linear", "hybrid")
GAP = torch.tensor([[1, 0, 1]])
LENGTHS = (3, 11, 7, 1)
each_layout = pytest.mark.parametrize("variant", LAYOUTS)


def build(variant: str, **changes) -> tuple[Decoder, "hf.RelationForCausalLM"]:
    """A decoder in FP32, and a transformers model with the same weights."""
    decoder = stirred(variant, **changes).float().eval()
    return decoder, hf.RelationForCausalLM.of(decoder, eos_token_id=None, pad_token_id=0).eval()


def close(actual: Tensor, expected: Tensor) -> None:
    assert (actual - expected).abs().max() <= 1e-5 * expected.abs().max()


def prompts() -> list[Tensor]:
    generator = torch.Generator().manual_seed(9)
    return [torch.randint(29, (n,), generator=generator) for n in LENGTHS]


def left_padded(rows: list[Tensor]) -> dict[str, Tensor]:
    pad = partial(torch.nn.utils.rnn.pad_sequence, batch_first=True, padding_side="left")
    return {"input_ids": pad(rows), "attention_mask": pad([torch.ones_like(row) for row in rows])}


def generated(model, rows: list[Tensor], empty: int = 0, **options) -> list[list[int]]:
    """Greedy continuations of 9 tokens, all rows in one batch, after `empty` columns of padding."""
    pad = partial(torch.nn.functional.pad, pad=(empty, 0))
    given = {name: pad(x).to(model.device) for name, x in left_padded(rows).items()}
    options = {"max_new_tokens": 9} | options
    ids = model.generate(**given, do_sample=False, pad_token_id=0, **options)
    return ids[:, given["input_ids"].shape[1] :].tolist()


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_saved_model_gives_the_decoders_logits(variant, tmp_path):
    decoder, model = build(variant)
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, use_cache=False)
    assert loaded.config.model() == decoder.config
    with torch.no_grad():
        for given in (model, loaded):
            close(given(TOKENS).logits, decoder(TOKENS))
        base = transformers.AutoModel.from_pretrained(tmp_path)
        close(base(TOKENS).last_hidden_state, decoder.states(TOKENS))
    # Converted back, it has the same parameters under the same names.
    decoder.load_state_dict(loaded.model.decoder.state_dict())


def test_numbers_of_numpy_are_saved(tmp_path):
    config = hf.RelationConfig(d_model=np.int64(32), heads=np.int32(4), tau=np.float32(1.5))
    config.save_pretrained(tmp_path)
    assert hf.RelationConfig.from_pretrained(tmp_path).model() == config.model()


def test_transformers_names_say_the_sizes():
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = hf.RelationConfig(**sizes, layout="LLLF", num_hidden_layers=4)
    assert (config.d_model, config.heads, config.num_hidden_layers) == (32, 4, 4)
    assert config.num_key_value_heads == config.model().shared_heads == 2
    alone = hf.RelationConfig(num_hidden_layers=4)
    assert (alone.layout, alone.num_hidden_layers) == ("FFFF", 4)


def test_new_weights_start_as_the_decoders_do():
    """With any options of initial weights; torch's seed decides."""
    given = {"scale_residual_init": True, "linear_init": "torch", "embedding_std": 1.0}
    config = hf.RelationConfig(d_model=64, d_ff=96, heads=4, layout="FLA", vocab_size=99, **given)
    torch.manual_seed(7)
    model, other = (hf.RelationForCausalLM(config).model.decoder for _ in range(2))
    expected = dict(Decoder(config.model(), seed=1).named_parameters())
    for name, p in model.named_parameters():
        assert p.shape == expected[name].shape
        if p.ndim > 1:
            assert p.std().item() == pytest.approx(expected[name].std().item(), rel=0.1), name
            assert not torch.equal(p, other.get_parameter(name))
        elif name.rpartition(".")[2] not in ("a_log", "dt_bias"):
            assert torch.equal(p, expected[name]), name


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"d_modle": 512}, "has no d_modle; did you mean 'd_model'?"),
        ({"rope_scaling": {"factor": 2.0}}, "RelationConfig has no rope_scaling; "),
        ({"num_hidden_layers": 12, "layout": "FL"}, "layout 'FL'; give a layout "),
        ({"num_key_value_heads": 3}, "kv_heads is 3 and heads 8"),
        ({"num_hidden_layers": "4"}, "num_hidden_layers is '4'; give int"),
        ({"layout": ["F", "L"]}, "give str"),
    ],
)
def test_unknown_fields_are_refused_in_a_line(fields, message):
    assert message in refusal(lambda: hf.RelationConfig(**fields))


@each_layout
def test_labels_give_the_mean_loss_of_the_next_tokens(variant):
    decoder, model = build(variant)
    labels = TOKENS.clone()
    labels[0, :4] = -100
    expected = torch.nn.functional.cross_entropy(
        decoder(TOKENS)[:, :-1].flatten(0, 1), labels[:, 1:].flatten(), ignore_index=-100
    )
    torch.testing.assert_close(model(TOKENS, labels=labels).loss, expected, rtol=1e-5, atol=0)
    assert model(TOKENS, logits_to_keep=2).logits.shape == (2, 2, 29)
    kept = model(TOKENS, logits_to_keep=torch.tensor([3])).logits
    torch.testing.assert_close(kept, decoder(TOKENS)[:, 3:4], rtol=0, atol=1e-5)


@each_layout
@pytest.mark.parametrize("changes", [{}, {"kv_heads": 2}], ids=["own heads", "shared heads"])
def test_greedy_texts_are_the_decoders_alone_and_in_a_batch(variant, changes):
    decoder, model = build(variant, **changes)
    rows = prompts()
    greedy = Sampling(temperature=0)
    expected = [list(generate_tokens(decoder, row.tolist(), 9, greedy)) for row in rows]
    assert generated(model, rows) == expected
    assert generated(model, rows, use_cache=False) == expected
    assert generated(model, rows, empty=3) == expected


@pytest.mark.parametrize("beams", [1, 2])
def test_generation_reads_each_token_once(beams):
    _, model = build("hybrid")
    read = []
    model.get_input_embeddings().register_forward_hook(lambda _, x, y: read.append(x[0].shape[1]))
    generated(model, prompts(), num_beams=beams)
    assert read == [max(LENGTHS)] + [1] * 8


def test_generation_goes_on_from_a_cache():
    _, model = build("hybrid")
    cache = hf.RelationCache(model.config)

    def continued(tokens: Tensor, **options) -> Tensor:
        mask = torch.ones_like(tokens)
        return model.generate(
            tokens, attention_mask=mask, max_new_tokens=4, do_sample=False, **options
        )

    text = continued(TOKENS, past_key_values=cache)
    assert cache.columns == text.shape[1] - 1
    longer = torch.cat((text, TOKENS), dim=1)
    assert torch.equal(continued(longer, past_key_values=cache), continued(longer))
    for wrong in (TOKENS[:, :3], TOKENS, longer):  # new tokens alone, an earlier text, nothing new
        message = refusal(lambda tokens=wrong: continued(tokens, past_key_values=cache))
        assert "give generate the whole text" in message


@each_layout
def test_checkpointing_changes_no_gradient(variant):
    """Checkpointing computes each block twice."""
    _, model = build(variant)
    calls, gradients = [], []
    model.model.decoder.blocks[0].register_forward_pre_hook(lambda *_: calls.append(None))
    for enable in (lambda: None, model.gradient_checkpointing_enable):
        enable()
        model.zero_grad()
        model.train()(TOKENS, labels=TOKENS).loss.backward()
        gradients.append([p.grad.clone() for p in model.parameters()])
    assert all(map(torch.equal, *gradients)) and len(calls) == 1 + 2


@pytest.mark.parametrize("variant", ["full", "mha"])
def test_compiled_without_a_break_padding_changes_nothing(variant):
    _, model = build(variant, layers=2)
    ids, mask = left_padded(prompts()[:2]).values()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    close(compiled(ids).logits, model(ids).logits)
    for first, text in ((1, mask[:, 1:]), (0, mask), (0, mask.flip(1))):  # of other lengths too
        read = [call(ids[:, first:], attention_mask=text).logits for call in (compiled, model)]
        close(*(logits[text.bool()] for logits in read))
    with pytest.raises(RuntimeError, match="has no text"):
        compiled(ids, attention_mask=mask * 0)


def test_a_compiled_model_generates_and_decodes_without_a_break():
    torch.compiler.reset()  # the graphs of other tests count towards its limit
    _, model = build("hybrid")
    rows, given, n = prompts(), left_padded(prompts()[1:3]), 7
    ids, mask = given.values()
    expected, texts = model(**given).logits, generated(model, rows)
    cache = model(ids[:, :n], attention_mask=mask[:, :n], use_cache=True)[1]
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    for t in range(n, ids.shape[1]):
        read = {"attention_mask": mask[:, : t + 1], "past_key_values": cache}
        read["position_ids"] = mask.cumsum(1)[:, t : t + 1] - 1
        close(compiled(ids[:, t : t + 1], **read).logits[:, 0], expected[:, t])
    with pytest.raises(RuntimeError, match="first block"):
        compiled(ids[:, :1], attention_mask=ids[:, :1] * 0, past_key_values=cache)
    model.compile(backend="eager")
    assert generated(model, rows) == texts and torch.is_grad_enabled()


@each_layout
def test_packed_documents_have_the_logits_of_documents_alone(variant):
    _, model = build(variant)
    rows = prompts()
    collator = transformers.DataCollatorWithFlattening()
    given = collator([{"input_ids": row.tolist()} for row in rows])  # positions restart at each
    n = given["input_ids"].shape[1]
    padded = {
        name: torch.nn.functional.pad(given[name], (2, 3)) for name in ("input_ids", "position_ids")
    }
    mask = torch.nn.functional.pad(torch.ones(1, n, dtype=torch.int64), (2, 3))
    with torch.no_grad():
        alone = torch.cat([model(row[None]).logits[0] for row in rows])
        actual = model(**given)
        close(actual.logits[0], alone)
        close(model(**padded, attention_mask=mask).logits[0, 2:-3], alone)
        # Both rows of a batch by positions for one.
        both = model(given["input_ids"].repeat(2, 1), position_ids=given["position_ids"])
        close(both.logits[1], alone)
    targets = torch.cat([torch.nn.functional.pad(row[1:], (0, 1), value=-100) for row in rows])
    expected = torch.nn.functional.cross_entropy(alone, targets)
    torch.testing.assert_close(actual.loss, expected, rtol=1e-5, atol=0)


@pytest.mark.parametrize(
    ("cached", "given", "message"),
    [
        (False, {"attention_mask": GAP}, "2 pieces of text"),
        (True, {"attention_mask": GAP}, "pad only a cache's first block"),
        (True, {"cache": "another"}, "are the same argument; give one of them"),
        (True, {"position_ids": torch.arange(3)[None]}, "holds one document, which position_ids"),
        (False, {"position_ids": torch.arange(2)[None]}, "shape (1, 2) and input_ids (1, 3)"),
        (False, {"attention_mask": torch.ones(1, 1, 3, 3)}, "shape (1, 1, 3, 3) and input_ids"),
        (True, {"attention_mask": torch.ones(1, 5)}, "shape (1, 5) and input_ids (1, 3)"),
        (False, {"past_key_values": transformers.DynamicCache()}, "is a DynamicCache; give"),
        (False, {"attention_mask": 2 * torch.ones(1, 3)}, "holds other numbers than 0 and 1"),
        (False, {"attention_mask": 2 * torch.ones(1, 3), "use_cache": True}, "other numbers than"),
        (False, {"output_attentions": True}, "takes no output_attentions; see help"),
        (False, {"atention_mask": GAP}, "takes no atention_mask; see help"),
    ],
)
def test_what_a_model_cannot_take_is_refused(cached, given, message):
    _, model = build("full")
    if cached:
        given = given | {"past_key_values": model(TOKENS[:1, :3], use_cache=True).past_key_values}
    assert message in refusal(lambda: model(TOKENS[:1, :3], **given))


def test_a_cache_which_computes_no_gradients_is_refused_in_training():
    _, model = build("full")
    model.train()
    for given in ({"use_cache": True}, {"past_key_values": hf.RelationCache(model.config)}):
        assert "to train" in refusal(lambda given=given: model(TOKENS, labels=TOKENS, **given))
    with torch.no_grad():
        assert model(TOKENS, use_cache=True).past_key_values is not None


def test_a_refused_padded_block_leaves_its_cache_as_it_was():
    _, model = build("full")
    cache, wrong = hf.RelationCache(model.config), TOKENS[:2, :3].clone()
    wrong[0, 2] = 999
    padded = {"attention_mask": torch.tensor([[0, 1, 1], [1, 1, 1]]), "past_key_values": cache}
    assert "go from" in refusal(lambda: model(wrong, **padded))
    model(TOKENS[:2, :3], past_key_values=cache)
    following = model(TOKENS[:2, 3:4], past_key_values=cache).logits
    close(following, model(TOKENS[:2, :4]).logits[:, 3:])


@each_layout
def test_padding_that_the_cache_read_as_text_is_refused(variant):
    _, model = build(variant)
    padding = torch.ones_like(TOKENS[:, :7])
    padding[0, :2] = 0
    for first, later in ((None, padding), (padding[:, :6], padding * 0 + 1)):
        cache = model(TOKENS[:, :6], attention_mask=first, use_cache=True).past_key_values
        given = {"attention_mask": later, "past_key_values": cache}
        assert "as it was read" in refusal(lambda given=given: model(TOKENS[:, 6:7], **given))


def test_an_offloaded_embedding_is_refused():
    accelerate, (_, model) = pytest.importorskip("accelerate"), build("full")
    accelerate.cpu_offload(model, execution_device=torch.device("cpu"))
    assert "inputs lie on cpu, meta" in refusal(lambda: model(TOKENS[:1, :3]))


def test_what_transformers_passes_beside_is_taken():
    """Extra arguments that PEFT, tokenizers, older generation code and Trainer pass."""
    _, model = build("full")
    passed = {"inputs_embeds": None, "token_type_ids": TOKENS * 0, "cache_position": TOKENS[0]}
    actual = model(TOKENS, labels=TOKENS, num_items_in_batch=40, return_dict=False, **passed)
    # As in Trainer's accumulation, the loss is a share: here of 20 of 40 tokens.
    torch.testing.assert_close(actual[0], model(TOKENS, labels=TOKENS).loss / 2)


@pytest.mark.parametrize("tokens", [60, 20])
def test_a_resized_vocabulary_is_the_decoders_too(tokens, tmp_path):
    _, model = build("hybrid")
    before = model.get_input_embeddings().weight[:20].detach().clone()
    model.resize_token_embeddings(tokens)
    decoder, last = model.model.decoder, tokens - 1
    assert decoder.config == model.config.model()
    assert decoder.config.vocab_size == model.config.vocab_size == tokens
    assert torch.equal(model.get_input_embeddings().weight[:20], before)
    ids = torch.tensor([[last, 3, 0, last]])
    given = model(ids, labels=ids)
    assert given.logits.shape == (1, 4, tokens)
    given.loss.backward()
    assert decoder.embedding.weight.grad[last].any()
    expected = generate_batch(decoder, [[last, 3]], 9, Sampling(temperature=0))
    assert generated(model, [torch.tensor([last, 3])]) == expected
    model.save_pretrained(tmp_path)
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path)
    for other in (loaded, hf.RelationForCausalLM.of(decoder)):
        assert other.model.decoder.config == decoder.config
        close(other(ids).logits, given.logits)
    assert hf.RelationForCausalLM.of(decoder.double()).dtype == torch.float64


def test_trainer_trains_every_parameter(tmp_path):
    pytest.importorskip("accelerate", reason="accelerate is not installed; pip install '.[hf]'")
    _, model = build("hybrid")
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rows = [{"input_ids": row, "labels": row} for row in TOKENS.repeat(4, 1)]
    quiet = {"report_to": [], "save_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    steps = {"max_steps": 6, "per_device_train_batch_size": 4, "learning_rate": 1e-2}
    options = transformers.TrainingArguments(output_dir=tmp_path, **steps, **quiet)
    first = model(TOKENS, labels=TOKENS).loss
    transformers.Trainer(model=model, args=options, train_dataset=rows).train()
    assert model(TOKENS, labels=TOKENS).loss < first - 0.1
    assert all(not torch.equal(p, before[name]) for name, p in model.named_parameters())
    # Smoothed labels are those of the next tokens too.
    options.label_smoothing_factor = 0.1
    trainer = transformers.Trainer(model=model.eval(), args=options)
    loss = trainer.compute_loss(model, {"input_ids": TOKENS, "labels": TOKENS})
    logits, targets = model(TOKENS).logits[:, :-1].flatten(0, 1), TOKENS[:, 1:].flatten()
    expected = torch.nn.functional.cross_entropy(logits, targets, label_smoothing=0.1)
    torch.testing.assert_close(loss, expected, rtol=1e-5, atol=0)


@each_layout
def test_lora_trains_every_tensor_and_merges_exactly(variant):
    peft = pytest.importorskip("peft", reason="peft is not installed; pip install peft")
    _, model = build(variant)
    options = peft.LoraConfig(r=2, target_modules="all-linear", init_lora_weights=False)
    lora = peft.get_peft_model(model, options)
    lora(TOKENS, labels=TOKENS).loss.backward()
    trained = {name: p for name, p in lora.named_parameters() if p.requires_grad}
    linears = [m for m in lora.modules() if isinstance(m, torch.nn.Linear)]
    assert len(trained) >= 2 * 4 * 7 and len(linears) > len(trained)
    assert [name for name, p in trained.items() if p.grad is None or not p.grad.any()] == []
    expected = lora.eval()(TOKENS).logits
    merged = lora.merge_and_unload()
    close(merged(TOKENS).logits, expected)
    assert not any("lora" in name for name, _ in merged.named_parameters())
