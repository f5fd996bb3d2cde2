"""Updates that replay CUDA graphs against the same updates launched one by one, bit for bit."""

import os

import pytest
import torch

from relation.data.mask import BoundedMask
from relation.nn import Decoder, Execution, ModelConfig
from relation.train.optimizer import build_optimizer
from relation.train.step import UpdateStep

# What PyTorch asks of whoever wants cuBLAS deterministic, before its first product.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

UPDATES, MICRO_BATCHES, MICRO, CONTEXT, VOCABULARY = 4, 3, 2, 100, 64


def trained(
    variant: str, backends: dict[str, str], capture: bool, masked: bool
) -> tuple[list, dict]:
    """Losses and norms of a few updates, and the parameters after them."""
    config = ModelConfig.for_variant(
        variant, layers=2, d_model=64, heads=4, d_ff=64, vocab_size=VOCABULARY
    )
    device = torch.device("cuda")
    torch.compiler.reset()
    model = Decoder(config, Execution(**backends, compiled=True))
    model.initialise(seed=1)
    model.to(device)
    optimizer = build_optimizer(model, 1e-2, (0.9, 0.95), 1e-8, 0.1, True)
    # Of 200 tokens some three are 0 and begin a document.
    documents = BoundedMask(0, 24) if masked else None
    step = UpdateStep(model, optimizer, device, "bf16", True, 1.0, documents=documents)
    tokens = torch.randint(
        VOCABULARY,
        (UPDATES, MICRO_BATCHES, MICRO, CONTEXT + 1),
        generator=torch.Generator().manual_seed(2),
    )
    seen = []
    for update in tokens:
        batches = [(x[:, :-1].contiguous(), x[:, 1:].contiguous()) for x in update]
        seen.append([x.item() for x in step(batches, update.numel(), 1e-2)])
        if not capture:
            step._compiled = False
    return seen, {name: p.detach().clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize(
    ("variant", "backends", "masked"),
    [
        ("mha", {"mha": "flash"}, False),
        ("full", {"full": "flash"}, False),
        ("full", {"full": "reference"}, False),
        ("linear", {"linear": "flash"}, False),
        ("mha", {"mha": "flash"}, True),
        ("full", {"full": "flash"}, True),
        ("full", {"full": "flex"}, True),
        ("linear", {"linear": "flash"}, True),
    ],
)
def test_replayed_updates_are_those_launched_one_by_one(variant, backends, masked):
    torch.use_deterministic_algorithms(True)
    try:
        (losses, parameters), (eager_losses, eager) = (
            trained(variant, backends, capture, masked) for capture in (True, False)
        )
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses == eager_losses
    for name, p in parameters.items():
        assert torch.equal(p, eager[name]), name
