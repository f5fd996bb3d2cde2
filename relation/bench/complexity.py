"""One layer's operator against T: time, forward and backward, and decode state (Table 1)."""

from dataclasses import dataclass
from pathlib import Path

import torch

from relation.bench.rounds import DTYPES, Answers, Timer, median_columns, record
from relation.jobs import Bench, Side
from relation.ops import get_backend


@dataclass
class OperatorCall:
    """Times one operator on one sequence of random tokens, (1, H, T, d_h)."""

    side: Side
    precision: str
    device: torch.device

    def prepare(self, context: int) -> dict:
        """Returns the bytes that a layer keeps of T tokens to decode the next."""
        operator, model, device = self.side.variant, self.side.model, self.device
        H, D = model.heads, model.head_dim
        if device.type == "cuda":
            torch.cuda.set_device(device)
        call = get_backend(operator, self.side.backends[operator], device).call
        generator = torch.Generator().manual_seed(0)
        drawn = torch.randn(4, 1, H, context, D, generator=generator)
        # p1, p2, info; of MHA q, k, v
        *inputs, dy = drawn.to(device, DTYPES[self.precision]).unbind()
        inputs = [x.requires_grad_() for x in inputs]
        if operator == "full":
            inputs.append(torch.tensor(model.lambda_init, device=device, requires_grad=True))
        elif operator == "linear":
            rate = torch.rand(1, H, context, D, generator=generator)
            inputs.append((-rate).to(device).requires_grad_())

        def forward_backward() -> None:
            y = call(*inputs)
            torch.autograd.grad(y[0] if operator == "linear" else y, inputs, dy)

        self._timer = Timer(device, forward_backward)
        # Two states a token, or C (H, D, D) in FP32.
        history = 2 * H * context * D * dy.element_size()
        return {"decode_state_bytes": 4 * H * D * D if operator == "linear" else history}

    def seconds(self, measure: str) -> float:
        return self._timer.seconds()


def measure(bench: Bench, out: Path, data: Path | None = None) -> None:
    """Time every operator at every context and write the record of kind `complexity`.

    data: not read; operators take random tokens. Raises InputError where the device is missing.
    """
    operators = {side.side: side for side in bench.sides}

    def sides_of(device: torch.device) -> list[dict[str, OperatorCall]]:
        return [{k: OperatorCall(s, bench.precision, device) for k, s in operators.items()}]

    def row(name: str, measure: str, given: tuple, answers: Answers) -> dict:
        seconds = median_columns("seconds", answers.samples.get(measure, []))
        return {"operator": name, "context": given[0], **seconds}

    contexts = dict.fromkeys(side.context for side in bench.sides)
    record(bench, out, "complexity", sides_of, [("operator", (T,)) for T in contexts], row)
