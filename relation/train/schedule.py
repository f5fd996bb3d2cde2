"""The WSD80 learning-rate schedule in tokens (Appendix B.2)."""


def wsd(before: int, after: int, budget: int, warmup: int, plateau: float) -> float:
    """The factor of the peak rate for an update that consumes tokens `before` .. `after`.

    Linear warm-up over `warmup` tokens, constant until the fraction `plateau` of the budget, then
    linear to zero. Warm-up reads the tokens after the update and decay those before it, so that
    no update has rate zero.
    """
    rise = min(1.0, after / warmup)
    fall = min(1.0, (budget - before) / (budget * (1 - plateau)))
    return min(rise, fall)
