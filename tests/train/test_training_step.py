"""One update: the gradient over micro-batches, the optimiser, documents, CUDA graphs."""

import os

import numpy as np
import pytest
import torch
from conftest import refusal
from training import CPU, small_model

from relation.data.windows import TrainingWindows
from relation.errors import RunError
from relation.kernels.documents import Documents
from relation.nn import Decoder, Execution
from relation.train.step import UpdateStep, build_optimizer, check_all_learn, nll_of

# PyTorch requires this for a deterministic cuBLAS, before its first product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
CONTEXT = 12
TOKENS = np.array([(7 * i * i + i // 3) % 61 for i in range(400)], dtype="<u2")
ADAMW = {"betas": (0.9, 0.95), "eps": 1e-8, "weight_decay": 0.1, "decay_embedding": True}

Batches = list[tuple[torch.Tensor, torch.Tensor]]


def toy(variant: str, dtype=torch.float32) -> Decoder:
    config = small_model(variant, heads=4, init_std=0.2, scale_residual_init=True)
    return Decoder(config, seed=42).to(dtype)


def batches(micro: int, tokens: int) -> Batches:
    """The micro-batches of an update of `tokens` tokens."""
    windows = TrainingWindows(TOKENS, CONTEXT, seed=42)
    ids = windows.window_ids(0, -(-tokens // CONTEXT))
    actual = []
    for first in range(0, len(ids), micro):
        left = min(tokens - first * CONTEXT, micro * CONTEXT)
        arrays = windows.batch(ids[first : first + micro], left, micro)
        actual.append(tuple(map(torch.from_numpy, arrays)))
    return actual


def gradient_step(variant: str, split: Batches, tokens: int, clip=1e9, dtype=torch.float32, **rest):
    """Return loss, norm, and what gradient descent at rate 1 subtracts, as a flat vector."""
    model = toy(variant, dtype)
    before = torch.cat([p.detach().flatten() for p in model.parameters()])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    step = UpdateStep(model, optimizer, CPU, "fp32", False, clip, **rest)
    loss, norm = step(split, tokens, learning_rate=1.0)
    after = torch.cat([p.detach().flatten() for p in model.parameters()])
    return loss.item(), norm.item(), before - after


@pytest.mark.parametrize("variant", ["mha", "full", "hybrid"])
@pytest.mark.parametrize(
    ("tokens", "micro"), [(8 * CONTEXT, 3), (8 * CONTEXT - 5, 8), (5 * CONTEXT + 1, 1)]
)
def test_any_split_into_micro_batches_gives_the_mean_gradient(variant, tokens, micro) -> None:
    """The truth is one padded batch in float64. FP32 sums of 96 terms may differ in rounding."""
    whole = batches(8, tokens)
    true_loss, true_norm, truth = gradient_step(variant, whole, tokens, dtype=torch.float64)
    loss, norm, change = gradient_step(variant, batches(micro, tokens), tokens)
    eps = 8 * CONTEXT * torch.finfo(torch.float32).eps
    assert loss == pytest.approx(true_loss, rel=eps)
    assert norm == pytest.approx(true_norm, rel=eps)
    assert (change - truth).abs().max() <= eps * truth.abs().max()
    _, _, clipped = gradient_step(variant, whole, tokens, clip=true_norm / 4, dtype=torch.float64)
    torch.testing.assert_close(clipped, truth / 4, rtol=1e-5, atol=1e-9)


@pytest.mark.parametrize("variant", ["mha", "hybrid"])
def test_documents_of_a_window_train_as_if_alone(variant: str) -> None:
    """The truth is the model with documents in float64; tests/nn checks it per document."""
    tokens, rows = 6 * CONTEXT, batches(3, 6 * CONTEXT)
    mask = lambda inputs, targets: Documents.bounded(inputs % 5 == 0, 40)  # noqa: E731
    *_, change = gradient_step(variant, rows, tokens, dtype=torch.float64, mask=mask)
    model = toy(variant, torch.float64)
    logits = torch.cat([model(inputs, mask(inputs, None)).flatten(0, 1) for inputs, _ in rows])
    targets = torch.cat([targets.flatten() for _, targets in rows])
    torch.nn.functional.cross_entropy(logits, targets).backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(change, truth, rtol=0, atol=1e-6)  # the loss is computed in FP32
    *_, unmasked = gradient_step(variant, rows, tokens, dtype=torch.float64)
    assert (unmasked - truth).abs().max() > 1e-3


@pytest.mark.parametrize("decay_embedding", [True, False])
@pytest.mark.parametrize("variant", ["mha", "full", "linear"])
def test_matrices_decay_and_nothing_else(variant: str, decay_embedding: bool) -> None:
    model = toy(variant)
    optimizer = build_optimizer(model, 1e-3, **ADAMW | {"decay_embedding": decay_embedding})
    decay = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    for name, parameter in model.named_parameters():
        decays = parameter.ndim >= 2 and (decay_embedding or name != "embedding.weight")
        assert decay[id(parameter)] == (0.1 if decays else 0.0), name
    wrapped = build_optimizer(
        torch.nn.Sequential(model), 1e-3, **ADAMW | {"decay_embedding": False}
    )
    assert model.embedding.weight not in set(wrapped.param_groups[0]["params"])
    everything = build_optimizer(model, 1e-3, **ADAMW, decay_vectors=True)
    assert {g["weight_decay"] for g in everything.param_groups} == {0.1}


@pytest.mark.parametrize("variant", ["mha", "full", "hybrid"])
def test_bf16_keeps_fp32_weights_and_gradients(variant: str) -> None:
    model, tokens = toy(variant), 4 * CONTEXT
    optimizer = build_optimizer(model, 1e-2, **ADAMW)
    given = (batches(4, tokens), tokens, 0.0)
    wide = UpdateStep(model, optimizer, CPU, "fp32", False, 1.0)(*given)
    half = UpdateStep(model, optimizer, CPU, "bf16", False, 1.0)(*given)
    # Products have eight significant bits. Their errors average over 48 tokens.
    for narrow, exact in zip(half, wide, strict=True):
        assert narrow.dtype == torch.float32 and narrow != exact
        assert narrow.item() == pytest.approx(exact.item(), rel=2**-6)
    moments = [m for state in optimizer.state.values() for m in state.values()]
    assert {t.dtype for t in (*model.parameters(), *moments)} == {torch.float32}


def test_a_parameter_that_nothing_reaches_is_named() -> None:
    model, tokens = toy("full"), 4 * CONTEXT
    model.spare = torch.nn.Parameter(torch.zeros(1))
    optimizer = build_optimizer(model, 1e-2, **ADAMW)
    UpdateStep(model, optimizer, CPU, "fp32", False, 1.0)(batches(4, tokens), tokens, 1e-2)
    message = refusal(lambda: check_all_learn(model, optimizer, "run"), RunError)
    assert "the gradient of spare is zero" in message


@pytest.mark.gpu
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("variant, backend", [
    ("mha", "flash"), ("full", "flash"), ("full", "reference"), ("linear", "flash"),
])  # fmt: skip
def test_replayed_updates_are_those_launched_one_by_one(variant, backend, masked) -> None:
    """CUDA graphs equal launches, bit for bit, over updates of three micro-batches.

    Both run the same compiled code, because a second compilation could choose other tile sizes. The
    model is evaluated between updates. With several GPUs, some cases run on the last one.
    """
    gpu = torch.cuda.device_count() - 1 if masked else 0
    device, config = torch.device("cuda", gpu), small_model(variant, layers=2, d_model=64, heads=4)
    generator = torch.Generator().manual_seed(2)
    tokens = torch.randint(61, (4, 3, 2, 101), generator=generator)
    backends = dict.fromkeys(("mha", "full", "linear"), backend)
    backends = backends if backend == "flash" else {"full": backend}
    model = Decoder(config, Execution(**backends, compiled=True), seed=1).to(device)
    start = {name: value.clone() for name, value in model.state_dict().items()}
    mask = lambda inputs, targets: Documents.bounded(inputs == 0, 24)  # noqa: E731
    step = UpdateStep(model, None, device, "bf16", True, 1.0, mask=mask if masked else None)

    def trained(run: UpdateStep) -> list:
        model.load_state_dict(start)
        run.optimizer = build_optimizer(model, 1e-2, **ADAMW)
        seen = []
        for update in tokens:
            rows = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in update]
            seen += [x.item() for x in run(rows, update.numel(), 1e-2)]
            validation = update.flatten().numpy().astype("<u2")
            seen.append(nll_of(model, validation, 50, 2, device, "bf16", lambda inputs: None))
        return [*seen, *(p.detach().clone() for p in model.parameters())]

    torch.use_deterministic_algorithms(True)
    try:
        both = trained(step.uncaptured()), trained(step)
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(
        torch.equal(torch.as_tensor(a), torch.as_tensor(b)) for a, b in zip(*both, strict=True)
    )
    with pytest.raises(RunError, match="pad it"):
        step([(x[:1, :-1], x[:1, 1:]) for x in tokens[0]], 1, 0.0)
