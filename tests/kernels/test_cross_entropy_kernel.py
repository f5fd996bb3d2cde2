"""The loss kernel (nll and its gradient in one pass) against cross-entropy in float64."""

import pytest
import torch
import torch.nn.functional as F
from exactness import SLACK, assert_close, poisoned_memory
from interpreter import INTERPRETED, run_interpreted
from torch import Tensor

IGNORED = -100


def plain(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32)).requires_grad_()
    nll = F.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="none")
    (dlogits,) = torch.autograd.grad(nll.sum(), wide)
    return nll.detach(), dlogits.to(logits.dtype)


def assert_exact(vocabulary: int, dtype: torch.dtype, device: str = "cpu") -> None:
    """Check logits (17, V) of about +-5 with some ignored targets."""
    from relation.kernels.cross_entropy import cross_entropy

    generator = torch.Generator().manual_seed(vocabulary)
    logits = (5 * torch.randn(17, vocabulary, generator=generator)).to(device, dtype)
    targets = torch.randint(vocabulary, (17,), generator=generator).to(device)
    targets[::5], targets[1] = IGNORED, vocabulary - 1
    with poisoned_memory():
        ours = cross_entropy(logits, targets, IGNORED)
    truth, yardstick = plain(logits.double(), targets), plain(logits, targets)
    for name, *three in zip(("nll", "dlogits"), ours, truth, yardstick, strict=True):
        assert_close(name, *three, SLACK[dtype])
    assert all(map(torch.equal, ours, cross_entropy(logits, targets, IGNORED)))


@pytest.mark.skipif(INTERPRETED, reason="it would start itself")
def test_the_interpreter_reproduces_the_definition():
    run_interpreted(__file__)


@pytest.mark.skipif(not INTERPRETED, reason="run by the test above")
class TestInterpreted:
    @pytest.mark.parametrize("vocabulary", [2, 300])
    def test_every_vocabulary(self, vocabulary):
        assert_exact(vocabulary, torch.float32)

    def test_what_is_no_number_is_not_hidden(self):
        """Logits that overflow, and targets outside the vocabulary."""
        from relation.kernels.cross_entropy import cross_entropy

        logits = torch.tensor([[0.0, torch.inf], [0.0, torch.nan], [3e38, -3e38]])
        nll, _ = cross_entropy(logits, torch.tensor([0, 0, 0]), IGNORED)
        assert nll[:2].isnan().all() and nll[2] == 0
        targets = torch.tensor([28, 29, 40, -1, IGNORED])
        nll, _ = cross_entropy(torch.zeros(5, 29), targets, IGNORED)
        assert nll.isnan().tolist() == [False, True, True, True, False]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", SLACK)
@pytest.mark.parametrize("vocabulary", [2, 29, 4096, 5000, 32768])
def test_every_vocabulary_on_a_gpu(vocabulary, dtype):
    assert_exact(vocabulary, dtype, "cuda")
