"""Bad input of every public operator and kernel raises one clear line that names it."""

import math
from types import SimpleNamespace

import pytest
import torch
from conftest import refusal
from torch.nn.attention import SDPBackend

from relation import kernels, ops
from relation.kernels.documents import Documents
from relation.ops.attention import fused_attention
from relation.ops.backends import Execution
from relation.variants import MHA

X = torch.zeros(1, 2, 3, 16)
LAM, THETA, STATE = torch.tensor(0.5), torch.zeros(1), torch.zeros(1, 2, 16, 16)

RELATION = {"p1": X, "p2": X, "info": X}
LINEAR = {**RELATION, "log_retention": X}
ATTENTION = {"q": X, "k": X, "v": X}
CALLS = {
    ops.full_flow: {"p1": X, "p2": X, "lam": LAM},
    ops.full_relation: {**RELATION, "lam": LAM},
    ops.tiled_relation: {**RELATION, "lam": LAM},
    ops.full_relation_step: {**RELATION, "lam": LAM},
    kernels.flash_relation: {**RELATION, "lam": LAM},
    ops.linear_relation: LINEAR,
    ops.chunked_linear_relation: LINEAR,
    kernels.linear_relation: LINEAR,
    ops.causal_flow: {"q": X, "k": X},
    ops.causal_attention: ATTENTION,
    ops.attention_step: ATTENTION,
    fused_attention: {**ATTENTION, "kernel": SDPBackend.FLASH_ATTENTION},
    ops.givens_mix: {"info": X, "theta": THETA, "layer_index": 0},
}
KERNELS = (kernels.flash_relation, kernels.linear_relation)
STEPS = (ops.attention_step, ops.full_relation_step)
FULL = (ops.full_flow, ops.full_relation, ops.tiled_relation, kernels.flash_relation)
FULL += (ops.full_relation_step,)
FORMS = (ops.linear_relation, ops.chunked_linear_relation, kernels.linear_relation)
# The states (B, H, T, D), which must agree, and operators that take no documents here.
STATES = ("p1", "p2", "info", "q", "k", "v", "x")
WITHOUT = (ops.givens_mix, *STEPS)


def assert_refused(message: str, call, *arguments, **options) -> None:
    assert message in refusal(lambda: call(*arguments, **options))


def name(operator) -> str:
    return operator.__name__


@pytest.mark.parametrize("operator", CALLS, ids=name)
def test_states_and_documents_that_do_not_fit_are_refused(operator):
    states = [state for state in STATES if state in CALLS[operator]]

    def refused(message: str, **wrong) -> None:
        assert_refused(message, operator, **{**CALLS[operator], **wrong})

    for state in states:
        refused("shape", **{state: X[0]})
    for state in states[1:]:
        for x in (X.mT, X[:, :, :1], X[:, :1, :1]):
            refused(f"{state} ", **{state: x})
        refused("float64", **{state: X.double()})
        refused("one device", **{state: X.to("meta")})
        refused(f" heads and {states[0]} 3", **{states[0]: torch.zeros(1, 3, 3, 16)})
    refused("int64", **dict.fromkeys(states, X.long()))
    for dimension in range(4):
        empty = torch.zeros([n * (d != dimension) for d, n in enumerate(X.shape)])
        refused("at least 1", **dict.fromkeys(states, empty))
    if operator not in WITHOUT:
        fit = Documents.of(torch.tensor([[0, 0, 1]]))
        elsewhere = Documents(fit.starts.to("meta"), fit.ends, fit.offsets, fit.longest)
        for documents, message in (
            ([[0, 0, 1]], "give Documents.of"),
            (torch.zeros(1, 3), "give Documents.of"),
            (Documents.of(torch.zeros(1, 4).long()), "documents are of (B, T) = (1, 4)"),
            (elsewhere, "documents lie on meta"),
        ):
            refused(message, documents=documents)


@pytest.mark.parametrize("operator", FULL + FORMS, ids=name)
@pytest.mark.parametrize("tau", [0.0, -1.0, math.nan, math.inf, torch.tensor(2.0)])
def test_a_temperature_that_is_not_a_positive_number_is_refused(operator, tau):
    assert_refused("positive and finite", operator, **CALLS[operator], tau=tau)


@pytest.mark.parametrize("operator", FULL, ids=name)
def test_lambda_is_one_floating_number_on_the_device(operator):
    for lam, message in (
        (torch.zeros(3), "lam has shape"),
        (torch.zeros(1, 1), "lam has shape"),
        (LAM.to("meta"), "one device"),
        (torch.tensor(1), "lam has dtype int64"),
        (0.5, "lam is a float"),
    ):
        assert_refused(message, operator, **{**CALLS[operator], "lam": lam})


@pytest.mark.parametrize("operator", FORMS, ids=name)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"log_retention": X[..., :1]}, "log_retention has shape"),
        ({"log_retention": X.to("meta")}, "one device"),
        ({"log_retention": X.long()}, "log_retention has dtype int64"),
        ({"log_retention": -0.1}, "log_retention is a float"),
        ({"state": STATE[:, :1]}, "state has shape"),
        ({"state": STATE.to("meta")}, "one device"),
        ({"state": STATE.cfloat()}, "state has dtype complex64"),
        ({"state": STATE, "documents": Documents.of(X[:, 0, :, 0].int())}, "not both"),
    ],
)
def test_retention_and_state_must_fit(operator, wrong, message):
    assert_refused(message, operator, **{**LINEAR, **wrong})


@pytest.mark.parametrize("step", STEPS, ids=name)
def test_a_block_of_new_tokens_must_fit_its_history(step):
    first = "p1" if "p1" in CALLS[step] else "q"
    for block in (X[:, :, :0], torch.zeros(1, 2, 4, 16), torch.zeros(2, 2, 1, 16)):
        assert_refused("shape", step, **{**CALLS[step], first: block})
    # (1, 1) would apply to all tokens, and (B, n, T) to heads instead of rows; B is not 3.
    for shape in ((1, 1), (2, 1, 3), (3, 1, 1, 3)):
        given = {**CALLS[step], first: X[:, :, :1], "visible": torch.ones(shape).bool()}
        assert_refused("visible is", step, **given)


@pytest.mark.parametrize(
    ("heads", "theta", "message"),
    [
        (3, torch.zeros(1), "H = 3 is odd"),
        (4, torch.zeros(1), "theta has shape"),
        (4, torch.zeros(2, device="meta"), "one device"),
        (4, 0.5, "theta is a float"),
    ],
)
def test_givens_needs_pairs(heads, theta, message):
    assert_refused(message, ops.givens_mix, torch.zeros(1, heads, 2, 2), theta, 0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("full", "fast"), "no backend 'fast'; did you mean 'flash'?"),
        (("relation", "reference"), "unknown operator 'relation'; choose among mha, full"),
        (("mha", "cudnn", "cpu"), "needs a CUDA device"),
    ],
)
def test_an_unknown_or_impossible_backend_is_refused(arguments, message):
    assert_refused(message, ops.get_backend, *arguments)


def test_a_model_refuses_a_backend_that_its_device_cannot_run():
    """When it is made, not at its first call."""
    model = SimpleNamespace(layout=MHA)
    execution = Execution(mha="cudnn")
    assert_refused("needs a CUDA device", execution.calls, model, torch.device("cpu"))


def test_documents_with_a_null_token_are_refused_by_flash_attention():
    documents = Documents.of(torch.tensor([[0, 0, 1]]))
    given = {**CALLS[fused_attention], "null": True, "documents": documents}
    assert_refused("with a null logit takes no documents", fused_attention, **given)


WIDTHS = {
    "head width is 15": X[..., :15],
    "head width is 129": torch.zeros(1, 2, 3, 129),
    "float64": X.double(),
    "it needs an NVIDIA GPU": X,
    "needs an NVIDIA GPU; on a CPU": torch.zeros(1, 2, 3, 128),
}


@pytest.mark.parametrize(
    ("operator", "wrong", "message"),
    [
        *((kernels.flash_relation, dict.fromkeys(RELATION, x), text) for text, x in WIDTHS.items()),
        *((kernels.linear_relation, dict.fromkeys(LINEAR, x), text) for text, x in WIDTHS.items()),
        (kernels.flash_relation, {"lam": LAM.bfloat16()}, "one float32 number"),
        (kernels.linear_relation, {"log_retention": X.half()}, "log_retention has dtype float16"),
        (kernels.linear_relation, {"state": STATE.double()}, "in float32"),
        *((op, {"p1": X[:, :1]}, "p2 has 2 heads and p1 1") for op in KERNELS),
    ],
)
def test_kernels_name_what_they_do_not_take(operator, wrong, message):
    assert_refused(message, operator, **{**CALLS[operator], **wrong})


def test_kernels_on_a_cpu_need_the_interpreter(monkeypatch):
    pytest.importorskip("triton")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    for operator in KERNELS:
        assert_refused("TRITON_INTERPRET=1", operator, **CALLS[operator])
    assert_refused("TRITON_INTERPRET=1", ops.get_backend, "linear", "flash", "cpu")
    assert "NVIDIA" in kernels.why_unavailable("mps")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no usable CUDA device" in kernels.why_unavailable("cuda:99")
