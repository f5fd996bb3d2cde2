"""What a campaign measures beside its runs: systems benchmarks, associative recall, checks."""

from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from relation.errors import InputError
from relation.jobs import Bench, Check, Recall, Side
from relation.variants import ARMS, FULL, LINEAR, MHA, PAIRED, VARIANTS

if TYPE_CHECKING:
    from relation.matrix import Matrix

_ROUNDS = ("rounds", "warmup_updates", "measured_updates")
_BENCHMARKS = ("fixed", "matched", "linear_steady", "linear_long", "complexity", "decode")
_DECODED = ("mha", "full", "linear", "hybrid")
# The layers of a mixer, and the variant whose options its models have. Hybrid's four layers, LLLF,
# shrink to one of each.
_RECALLED = {
    "mha": (MHA * 2, "mha"),
    "full": (FULL * 2, "full"),
    "linear": (LINEAR * 2, "linear"),
    "hybrid": (LINEAR + FULL, "linear"),
}
# T, micro-batch and draws at most. In BF16 so many draws lift lambda's gradient above the noise,
# and the T x T matrices in FP64 fit on a GPU; FP32's noise is 2^-16 of that, so few tokens do.
_CHECKED = {"bf16": (512, 8, 32), "fp32": (32, 2, 16)}


def sides(matrix: "Matrix", benchmark: str, scale: str) -> list[tuple]:
    """Side, variant, backends, context and [micro, accumulation] of what it measures."""
    systems, at = matrix.section.systems, getattr(matrix.section.systems, benchmark)
    baseline, flash = systems.baseline.given(), {"full": systems.flash}
    own = {v: matrix.options(scale, v, matrix.first)["backends"] for v in ("linear", *_DECODED)}
    if benchmark in ("fixed", "matched", "linear_steady"):
        batch = at.batches[scale]
        context = at.context or matrix.options(scale, "full")["context"]
    if benchmark == "fixed":
        found = [("reference", "full", {"full": "reference"}), ("full", "full", flash)]
        if matrix.options(scale, "full")["compile"]:
            found.append(("reference-compiled", "full", {"full": "materialised"}))
    elif benchmark == "matched":
        found = [("mha", "mha", baseline), ("full", "full", flash)]
        found += [(f"mha-{peer}", "mha", {"mha": peer}) for peer in at.peers or ()]
    elif benchmark == "linear_steady":
        found = [("linear", "linear", own["linear"])]
    elif benchmark == "linear_long":
        tokens = matrix.options(scale, "linear")["tokens_per_update"]
        linear = ("linear", own["linear"])
        return [(f"T={t}", *linear, t, (1, max(1, tokens // t))) for t in at.contexts]
    elif benchmark == "complexity":
        operators = (
            ("mha", "mha", baseline),
            ("full-reference", "full", {"full": "reference"}),
            ("full-flash", "full", flash),
            ("linear", "linear", own["linear"]),
        )
        return [(*each, t, (1, 1)) for each in operators for t in at.contexts]
    else:
        return [
            (f"{variant} T={t} x {rows}", variant, own[variant], t, (rows, 1))
            for variant in _DECODED
            for t in at.contexts
            for rows in at.rows
        ]
    return [(*each, context, batch) for each in found]


def benchmarks(matrix: "Matrix") -> list[Bench]:
    """Every systems benchmark (Appendix F)."""
    systems, found = matrix.section.systems, []
    for name in _BENCHMARKS if systems else ():
        at = getattr(systems, name)
        for scale in () if at is None else (getattr(at, "batches", None) or [at.scale]):
            if scale not in matrix.section.scales:
                where = f"config/{matrix.name}.yaml: systems.{name}"
                known = ", ".join(matrix.section.scales)
                raise InputError(f"{where} names scale {scale!r}; choose among {known}")
            o = matrix.options(scale, "full", matrix.first)
            measured = (
                Side(
                    side=side,
                    variant=variant,
                    backends=backends,
                    model=matrix.model_at(scale, variant),
                    context=context,
                    micro=batch[0],
                    accumulation=batch[1],
                    position=position if name == "linear_long" else 0,
                )
                for position, (side, variant, backends, context, batch) in enumerate(
                    sides(matrix, name, scale)
                )
            )
            bench = Bench(
                campaign=matrix.name,
                variation=next(iter(matrix.variations)),
                benchmark=name.replace("_", "-"),
                scale=scale,
                sides=tuple(measured),
                optimizer=matrix.optimizer(scale) | {"learning_rate": o["learning_rate"]},
                **{n: o[n] for n in ("precision", "compile", "device")},
                **{n: getattr(systems, n) for n in _ROUNDS},
            )
            found.append(bench)
    return found


def recall(matrix: "Matrix") -> list[Recall]:
    """Associative recall of every mixer. Raises InputError for sequences that cannot be."""
    section = matrix.section.recall
    if section is None:
        return []
    where, scale = f"config/{matrix.name}.yaml: recall", next(iter(matrix.section.scales))
    for length, pairs in section.tasks:
        if length % 2 or length < 4 * pairs or pairs >= section.vocabulary // 2:
            raise InputError(
                f"{where}.tasks: {pairs} pairs need an even length of at least {4 * pairs} and "
                f"a vocabulary of at least {2 * pairs + 2}; {length} and {section.vocabulary} "
                "are given"
            )
    found = []
    for mixer in section.mixers:
        layout, variant = _RECALLED[mixer]
        like, o = matrix.model_at(scale, variant), matrix.options(scale, variant, matrix.first)
        if section.warmup_updates > o["plateau_fraction"] * section.updates:
            raise InputError(f"{where}: warmup_updates reach beyond the plateau; lower them")
        shape = {"layout": layout, "vocab_size": section.vocabulary, "heads": section.heads}
        taken = {
            each.name: _frozen(getattr(section, each.name))
            for each in fields(Recall)
            if each.name in type(section).model_fields
        }
        recall = Recall(
            campaign=matrix.name,
            variation=next(iter(matrix.variations)),
            mixer=mixer,
            models=tuple(replace(like, d_model=d, d_ff=2 * d, **shape) for d in section.widths),
            optimizer=matrix.optimizer(scale) | {"eps": section.adam_eps},
            **{n: o[n] for n in ("plateau_fraction", "precision", "device", "compile", "backends")},
            **taken,
        )
        found.append(recall)
    return found


def check(matrix: "Matrix") -> Check | None:
    """The checks against FP64; None where the campaign has none."""
    if not matrix.section.check:
        return None
    scales = list(matrix.section.scales)
    geometry = {scale: matrix.options(scale, "full", matrix.first) for scale in scales}
    trained = {scale: matrix.section.scales[scale].variants or () for scale in scales}
    o = geometry[scales[0]]
    length, micro, draws = _CHECKED[o["precision"]]
    sides, at = [], []
    for variant in VARIANTS:
        pattern = len(VARIANTS[variant].pattern)
        found = [scale for scale in scales if variant in trained[scale]]
        if not found and (variant in PAIRED or variant not in ARMS):
            found = [scale for scale in scales if geometry[scale]["layers"] % pattern == 0]
        if not found:
            continue
        own = matrix.options(found[0], variant, matrix.first)
        whole = matrix.model_at(found[0], variant)
        layers = max(2, pattern)  # two hold both pairings of heads
        side = Side(
            side=variant,
            variant=variant,
            backends=own["backends"],
            model=replace(whole, layout=whole.layout[:layers]),
            context=min(length, own["context"]),
            micro=min(micro, own["micro"]),
            accumulation=2,
        )
        sides.append(side)
        at.append(found[0])
    shapes: dict[tuple, dict] = {}
    for scale, g in geometry.items():
        # Heads do not meet in the operator: two are enough. Scales of one shape are checked once.
        shape = (min(2, g["heads"]), g["context"], g["d_model"] // g["heads"])
        named = zip(("heads", "length", "width"), shape, strict=True)
        shapes.setdefault(shape, {"scale": scale, **dict(named)})
    return Check(
        campaign=matrix.name,
        variation=next(iter(matrix.variations)),
        backend=matrix.section.systems.flash if matrix.section.systems else o["backends"]["full"],
        linear=o["backends"]["linear"],
        shapes=tuple(shapes.values()),
        draws=16,
        gradients=tuple(sides),
        gradient_scales=tuple(at),
        gradient_draws=draws,
        **{n: o[n] for n in ("precision", "compile", "device")},
    )


def _frozen(value: Any) -> Any:
    return tuple(map(_frozen, value)) if isinstance(value, list) else value
