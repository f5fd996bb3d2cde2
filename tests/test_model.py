"""The models: the paper's parameter counts, and every variant against its equations in float64."""

import math

import pytest
import torch
import torch.nn.functional as F
from equations import assert_close
from torch import Tensor

from relation.errors import InputError
from relation.nn import Decoder, Execution, ModelConfig
from relation.nn.decoder import shared_weights_hash
from relation.nn.norm import Normed
from relation.pipeline.inventory import count_parameters

FULL_LIKE = ("full", "exchange-only", "raw-x", "no-count", "no-givens", "single-head")
VARIANTS = ("mha", *FULL_LIKE, "linear", "hybrid")
BACKBONES = {
    "10M": {"layers": 6, "d_model": 384, "heads": 8, "d_ff": 768, "vocab_size": 4096},
    "30M": {"layers": 10, "d_model": 512, "heads": 8, "d_ff": 1024, "vocab_size": 4096},
    "100M": {"layers": 20, "d_model": 640, "heads": 8, "d_ff": 1280, "vocab_size": 32768},
    "hybrid": {"layers": 12, "d_model": 480, "heads": 8, "d_ff": 960, "vocab_size": 4096},
}
TINY = {"layers": 4, "d_model": 24, "heads": 4, "d_ff": 20, "vocab_size": 29}
TOKENS = torch.randint(29, (2, 11), generator=torch.Generator().manual_seed(1))


def build(variant: str, seed: int = 42, **changes) -> Decoder:
    """A tiny model with initial weights."""
    model = Decoder(ModelConfig.for_variant(variant, **{**TINY, **changes}))
    model.initialise(seed)
    return model


def stirred(variant: str, **changes) -> Decoder:
    """A float64 model whose every parameter, angles and norms too, has left its initial value."""
    model = build(variant, **changes).double()
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for p in model.parameters():
            p += 0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype)
    return model


@pytest.mark.parametrize(
    ("scale", "variant", "count"),
    [
        ("10M", "mha", 10_425_216),
        ("10M", "full", 10_425_246),
        ("30M", "mha", 28_322_304),
        ("30M", "full", 28_322_354),
        ("100M", "mha", 102_917_760),
        ("100M", "full", 102_917_860),
        ("hybrid", "hybrid", 31_967_571),
        # What each ablation of the 10M model lacks: W_I, the lambdas, the angles.
        ("10M", "exchange-only", 10_425_246),
        ("10M", "raw-x", 10_425_246 - 6 * 384**2),
        ("10M", "no-count", 10_425_246 - 6),
        ("10M", "no-givens", 10_425_246 - 6 * 4),
        ("10M", "single-head", 10_425_246 - 6 * 4),
    ],
)
def test_parameter_counts_are_exact(scale, variant, count):
    config = ModelConfig.for_variant(variant, **BACKBONES[scale])
    with torch.device("meta"):
        sizes = [math.prod(p.shape) for p in Decoder(config).parameters()]
    assert count_parameters(config) == sum(sizes) == count


def test_hybrid_and_single_head_have_the_papers_shape():
    assert ModelConfig.for_variant("hybrid", **BACKBONES["hybrid"]).layout == "LLLF" * 3
    single = ModelConfig.for_variant("single-head", **BACKBONES["10M"])
    assert (single.layout, single.heads, single.head_dim) == ("F" * 6, 1, 384)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight


def rotate(x: Tensor) -> Tensor:
    """RoPE as a complex rotation of channel c with channel c + D/2, base 1e4, positions from 0."""
    T, half = x.shape[-2], x.shape[-1] // 2
    angle = torch.arange(T).double()[:, None] * 1e4 ** (-torch.arange(half).double() / half)
    turned = torch.complex(*x.chunk(2, -1)) * torch.polar(torch.ones_like(angle), angle)
    return torch.cat((turned.real, turned.imag), -1)


def mix(info: Tensor, theta: Tensor, odd: int) -> Tensor:
    """Pairs (1, 2) (3, 4) ... where odd is 0, else (2, 3) ... (H, 1); one-based."""
    heads, mixed = info.shape[1], info.clone()
    for n, angle in enumerate(theta):
        a, b = (2 * n + odd) % heads, (2 * n + odd + 1) % heads
        mixed[:, a] = angle.cos() * info[:, a] - angle.sin() * info[:, b]
        mixed[:, b] = angle.sin() * info[:, a] + angle.cos() * info[:, b]
    return mixed


def exchange_scan(p1: Tensor, p2: Tensor, info: Tensor, g: Tensor) -> Tensor:
    """Linear Relation's Y, one token after the other (Section 5.2)."""
    S = torch.sigmoid((p1 * p2).sum(-1, keepdim=True) / (2 * p1.shape[-1] ** 0.5))
    h1, h2 = F.normalize(p1, dim=-1), F.normalize(p2, dim=-1)
    C, y = p1.new_zeros(*p1.shape[:2], p1.shape[-1], p1.shape[-1]), info.clone()
    for t in range(p1.shape[2]):
        C = g[:, :, t, :, None].exp() * C
        y[:, :, t] += torch.einsum("bhkd,bhk->bhd", C, S[:, :, t] * h1[:, :, t])
        C = C + (S[:, :, t] * h2[:, :, t])[..., None] * info[:, :, t, None]
    return y


@torch.no_grad()
def transcription(model: Decoder, tokens: Tensor, variant: str) -> tuple[Tensor, list[Tensor]]:
    """Logits and flows of Sections 3 to 5 and Appendix D.1 from a model's weights, in float64."""
    c, E, flows = model.config, model.embedding.weight, []
    x, T = E[tokens], tokens.shape[1]
    history = torch.ones(T, T).tril(-1).bool()
    for index, (block, letter) in enumerate(zip(model.blocks, c.layout, strict=True)):
        w = dict(block.named_parameters())
        n = norm(x, w["mixer_norm.weight"], c.norm_eps)
        source = x if c.retention_input == "residual" else n

        def heads(y: Tensor) -> Tensor:
            return y.reshape(*y.shape[:2], c.heads, -1).transpose(1, 2)

        p1, p2 = (
            rotate(heads(n @ w["mixer.w1.weight"].T)),
            rotate(heads(n @ w["mixer.w2.weight"].T)),
        )
        info = heads(n if variant == "raw-x" else n @ w["mixer.wi.weight"].T)
        U = p1 @ p2.mT / p1.shape[-1] ** 0.5
        if variant not in ("mha", "no-givens", "single-head"):
            info = mix(info, w["mixer.theta"], (index + (c.givens_first_pairing == "B")) % 2)
        if letter == "L":
            down, up = heads(source @ w["mixer.retention_down.weight"].T), w["mixer.retention_up"]
            r = torch.einsum("hjk,bhtk->bthj", up, down).flatten(2)
            dt = F.softplus(r + w["mixer.dt_bias"])
            y = exchange_scan(p1, p2, info, heads(-w["mixer.a_log"].exp() * dt))
        else:
            lam = w.get("mixer.lam", torch.zeros(()))
            log_i = torch.arange(1, T + 1).double().log()[:, None]
            past = U if letter == "A" else U * torch.sigmoid(U) - lam * log_i
            own = U if letter == "A" else torch.sigmoid(U / 2)
            R = past.where(history, own.where(torch.eye(T).bool(), -torch.inf))
            flows.append(R.softmax(-1))
            y = (flows[-1] * history if variant == "exchange-only" else flows[-1]) @ info
        x = x + y.transpose(1, 2).flatten(2) @ w["mixer.wo.weight"].T
        n = norm(x, w["ffn_norm.weight"], c.norm_eps)
        gate, up = n @ w["ffn.gate.weight"].T, n @ w["ffn.up.weight"].T
        x = x + (gate * torch.sigmoid(gate) * up) @ w["ffn.down.weight"].T
    return norm(x, model.norm.weight, c.norm_eps) @ E.T, flows


def assert_same(actual: Tensor, expected: Tensor) -> None:
    # RoPE's angles are FP32 in the model: eight roundings a position, for eleven positions.
    atol = 8 * 11 * 2**-23 * max(expected.abs().max().item(), 1)
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        *((variant, {}) for variant in VARIANTS),
        ("full", {"givens_first_pairing": "B"}),
        ("hybrid", {"layers": 8, "retention_input": "residual", "givens_first_pairing": "B"}),
    ],
)
def test_model_is_the_papers_equations(variant, changes):
    model = stirred(variant, **changes)
    logits, flows = transcription(model, TOKENS, variant)
    assert_same(model(TOKENS), logits)
    if variant in ("linear", "hybrid"):
        with pytest.raises(InputError, match="Linear"):
            list(model.flows(TOKENS))
        return
    for flow, expected in zip(model.flows(TOKENS), flows, strict=True):
        assert_same(flow, expected)
        assert not flow.triu(1).any()
        torch.testing.assert_close(flow.sum(-1), torch.ones_like(flow[..., 0]))


@pytest.mark.parametrize("first", ["A", "B"])
def test_mixing_the_weights_is_mixing_the_states(first):
    mixer = stirred("full", givens_first_pairing=first).blocks[0].mixer
    generator = torch.Generator().manual_seed(5)
    x, dy = torch.randn(2, 2, 11, 24, generator=generator, dtype=torch.float64)
    leaves = (x.requires_grad_(), mixer.theta, mixer.wi.weight)
    states = mix(
        (x @ mixer.wi.weight.T).unflatten(-1, (4, -1)).transpose(1, 2), mixer.theta, first == "B"
    )
    dy = dy.unflatten(-1, (4, -1)).transpose(1, 2)
    information = mixer.information(Normed(x))
    gradients, truths = (torch.autograd.grad(y, leaves, dy) for y in (information, states))
    for actual, expected in zip((information, *gradients), (states, *truths), strict=True):
        # Sums of d products, and over the tokens for the gradients of the weights.
        assert_close(actual, expected, 24 + 2 * 11)


@pytest.mark.parametrize("variant", VARIANTS)
def test_logits_are_causal_and_every_parameter_learns(variant):
    model = build(variant)
    logits = model(TOKENS)
    changed = model(torch.where(torch.arange(11) == 6, (TOKENS + 1) % 29, TOKENS))
    assert torch.equal(changed[:, :6], logits[:, :6])
    assert (changed != logits)[:, 6:].any(-1).all()
    F.cross_entropy(logits.flatten(0, 1), TOKENS.roll(-1, 1).flatten()).backward()
    assert not [n for n, p in model.named_parameters() if p.grad is None or not p.grad.any()]


@pytest.mark.parametrize("variant", ["mha", "full", "exchange-only", "hybrid"])
def test_execution_does_not_change_the_model(variant):
    model = stirred(variant)
    execution = Execution(mha="flash", full="tiled", linear="chunked")
    other = Decoder(model.config, execution).double()
    other.load_state_dict(model.state_dict())
    expected = model(TOKENS)
    torch.testing.assert_close(other(TOKENS), expected, rtol=1e-9, atol=1e-9)
    model.run_by(execution)
    assert torch.equal(model(TOKENS), other(TOKENS))


@pytest.mark.parametrize("variant", FULL_LIKE)
def test_paired_variants_start_from_the_weights_they_share(variant):
    mha, other = (dict(build(v).named_parameters()) for v in ("mha", variant))
    apart = {n.split(".")[-1] for n in set(mha) ^ set(other)}
    assert apart <= {"lam", "theta"} | ({"weight"} if variant == "raw-x" else set())
    assert all(torch.equal(mha[n], other[n]) for n in set(mha) & set(other))


def test_initial_weights_follow_the_seed_and_their_name():
    assert shared_weights_hash(build("mha")) == shared_weights_hash(build("full"))
    assert shared_weights_hash(build("mha")) != shared_weights_hash(build("mha", seed=43))
    first, other = (dict(build("hybrid", s).named_parameters()) for s in (42, 43))
    drawn = [n for n in first if not n.endswith(("norm.weight", "lam", "theta"))]
    assert not any(torch.equal(first[n], other[n]) for n in drawn)
    flat = [first[n].flatten()[:20].tolist() for n in drawn]
    assert all(a != b for i, a in enumerate(flat) for b in flat[:i])


@pytest.mark.parametrize("scaled", [False, True])
def test_initial_values_are_the_papers_and_specs(scaled):
    geometry = {"d_model": 128, "d_ff": 160, "vocab_size": 300, "layers": 8}
    model = build("hybrid", **geometry, scale_residual_init=scaled)
    for name, p in model.named_parameters():
        if name.endswith("lam"):
            assert p.dtype == torch.float32 and p.item() == 0.5
        elif name.endswith("theta"):
            assert p.dtype == torch.float32 and not p.any()
        elif name.endswith("norm.weight"):
            assert (p == 1).all()
        elif name.endswith("a_log"):
            assert (p >= 0).all() and (p <= math.log(16)).all() and p.std() > 0.3
        elif name.endswith("dt_bias"):
            dt = F.softplus(p)
            assert (dt > 0.999e-3).all() and (dt < 0.1001).all() and dt.log().std() > 1
        else:
            residual = name.endswith(("wo.weight", "ffn.down.weight"))
            sd = 0.02 / (16**0.5 if scaled and residual else 1)
            # Five standard errors of a normal sample's standard deviation.
            assert abs(p.std().item() / sd - 1) < 5 / (2 * p.numel()) ** 0.5


def test_output_matrix_is_the_embedding():
    model = build("full")
    before = model(TOKENS)
    unseen = next(token for token in range(29) if token not in TOKENS)
    model.embedding.weight.data[unseen] += 1
    assert (model(TOKENS) != before).flatten(0, 1).any(0).nonzero().flatten().tolist() == [unseen]


@pytest.mark.parametrize(
    ("variant", "part", "neutral"),
    [
        ("no-count", "lam", torch.tensor(0.0)),
        ("no-givens", "theta", torch.zeros(2)),
        ("raw-x", "wi.weight", torch.eye(24)),
    ],
)
def test_ablation_is_full_relation_with_one_part_made_neutral(variant, part, neutral):
    full = build("full")
    full.load_state_dict({f"blocks.{i}.mixer.{part}": neutral for i in range(4)}, strict=False)
    torch.testing.assert_close(full(TOKENS), build(variant)(TOKENS))


@pytest.mark.parametrize(
    ("variant", "changes"),
    [
        ("full", {"heads": 5}),
        ("mha", {"d_model": 20, "heads": 4}),
        ("full", {"d_model": 18, "heads": 3}),
        ("softmax", {}),
        ("hybrid", {"layers": 6}),
        ("mha", {"layers": 0}),
        ("mha", {"d_ff": 0}),
        ("full", {"tau": 0.0}),
        ("full", {"givens_first_pairing": "C"}),
        ("linear", {"retention_input": "raw"}),
    ],
)
def test_impossible_models_are_refused_in_one_line(variant, changes):
    with pytest.raises(InputError) as refusal:
        ModelConfig.for_variant(variant, **{**TINY, **changes})
    assert "\n" not in str(refusal.value)


def test_unknown_layers_and_backends_are_refused():
    with pytest.raises(InputError, match="layout"):
        ModelConfig(vocab_size=29, d_model=24, heads=4, d_ff=20, layout="AX")
    with pytest.raises(InputError, match="fast"):
        Decoder(ModelConfig.for_variant("full", **TINY), Execution(full="fast"))
