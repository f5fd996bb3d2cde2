"""What a campaign measures beside its runs: systems benchmarks, associative recall, checks."""

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from relation.config import Batches
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


def sides(matrix: "Matrix", benchmark: str, scale: str) -> Iterator[Side]:
    """What a benchmark measures beside each other."""
    systems, at = matrix.section.systems, getattr(matrix.section.systems, benchmark)
    o = {variant: matrix.at(scale, variant) for variant in _DECODED}
    own = {variant: options["backends"] for variant, options in o.items()}
    mha, reference = ("mha", "mha", systems.baseline.given()), {"full": "reference"}
    flash, linear = ("full", "full", {"full": systems.flash}), ("linear", "linear", own["linear"])
    if benchmark == "fixed":
        forms = [("reference", "full", reference), flash]
        if o["full"]["compile"]:
            forms.append(("reference-compiled", "full", {"full": "materialised"}))
    elif benchmark == "matched":
        forms = [mha, flash, *((f"mha-{peer}", "mha", {"mha": peer}) for peer in at.peers or ())]
    elif benchmark == "linear_steady":
        forms = [linear]
    elif benchmark == "linear_long":
        forms = [("T={T}", *linear[1:])]
    elif benchmark == "complexity":
        forms = [mha, ("full-reference", "full", reference), ("full-flash", *flash[1:]), linear]
    else:
        forms = [(f"{v} T={{T}} x {{rows}}", v, backends) for v, backends in own.items()]
    if isinstance(at, Batches):
        cells = [(at.context or o["full"]["context"], *at.batches[scale])]
    elif benchmark == "linear_long":
        tokens = o["linear"]["tokens_per_update"]
        cells = [(T, 1, max(1, tokens // T)) for T in at.contexts]
    else:
        cells = [(T, rows, 1) for T in at.contexts for rows in at.rows or [1]]
    for name, variant, backends in forms:
        for position, (T, micro, accumulation) in enumerate(cells):
            yield Side(
                side=name.format(T=T, rows=micro),
                variant=variant,
                backends=backends,
                model=matrix.model_at(scale, variant),
                context=T,
                micro=micro,
                accumulation=accumulation,
                position=position if benchmark == "linear_long" else 0,
            )


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
            o = matrix.at(scale)
            bench = Bench(
                **matrix.key,
                benchmark=name.replace("_", "-"),
                scale=scale,
                sides=tuple(sides(matrix, name, scale)),
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
    taken = {each.name for each in fields(Recall)} & section.given().keys()
    taken = {name: _frozen(getattr(section, name)) for name in taken}
    found = []
    for mixer in section.mixers:
        layout, variant = _RECALLED[mixer]
        like, o = matrix.model_at(scale, variant), matrix.at(scale, variant)
        if section.warmup_updates > o["plateau_fraction"] * section.updates:
            raise InputError(f"{where}: warmup_updates reach beyond the plateau; lower them")
        shape = {"layout": layout, "vocab_size": section.vocabulary, "heads": section.heads}
        recall = Recall(
            **matrix.key,
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
    scales = matrix.section.scales
    geometry = {scale: matrix.at(scale) for scale in scales}
    o = next(iter(geometry.values()))
    length, micro, draws = _CHECKED[o["precision"]]
    sides, at = [], []
    for name, variant in VARIANTS.items():
        pattern = len(variant.pattern)
        found = [scale for scale in scales if name in (scales[scale].variants or ())]
        if not found and (name in PAIRED or name not in ARMS):
            found = [scale for scale in scales if geometry[scale]["layers"] % pattern == 0]
        for scale in found[:1]:
            own, whole = matrix.at(scale, name), matrix.model_at(scale, name)
            layers = max(2, pattern)  # two hold both pairings of heads
            side = Side(
                side=name,
                variant=name,
                backends=own["backends"],
                model=replace(whole, layout=whole.layout[:layers]),
                context=min(length, own["context"]),
                micro=min(micro, own["micro"]),
                accumulation=2,
            )
            sides.append(side)
            at.append(scale)
    shapes: dict[tuple, dict] = {}
    for scale, g in geometry.items():
        # Heads do not meet in the operator: two are enough. Scales of one shape are checked once.
        shape = (min(2, g["heads"]), g["context"], g["d_model"] // g["heads"])
        named = zip(("heads", "length", "width"), shape, strict=True)
        shapes.setdefault(shape, {"scale": scale, **dict(named)})
    return Check(
        **matrix.key,
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
