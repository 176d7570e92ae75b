"""Lowering of the optimisers of the preview domain: arithmetic on each parameter, its gradient and its running moments."""

from __future__ import annotations

from collections.abc import Callable

from fusion_search.frontends.onnx.lower.context import Call, Item, Lowering, NotLowered, Rule
from fusion_search.frontends.onnx.lower.formula import Term

Step = Callable[[Call, Term, Term, list[Term]], list[Term]]


def _rule(step: Step, moments: int) -> Rule:
    """Make a rule of what happens to one parameter: rate, number of updates, then parameters, gradients and each moment in a row."""

    def lowered(ctx: Lowering, call: Call) -> list[Item]:
        rate, count, *rest = (Term(ctx, name) for name in call.tensors)
        size = 2 + moments
        if not rest or len(rest) % size or any(not ctx.is_float(term.name) for term in (rate, *rest)):
            raise NotLowered
        n = len(rest) // size
        columns: list[list[str]] = []
        for k in range(n):
            own = rest[k::n]
            dtypes = [own[0].dtype, *(term.dtype for term in own[2:])]
            own = [term.widen() for term in own]
            wide = own[0].dtype
            if any(term.dtype != wide for term in own):
                raise NotLowered
            new = step(call, rate.cast(wide).view(), count.cast(wide).view(), own)
            columns.append([ctx.narrow(term.name, dtype) for term, dtype in zip(new, dtypes, strict=True)])
        return [column[k] for k in range(1 + moments) for column in columns]

    return lowered


def _regularised(call: Call, x: Term, gradient: Term) -> Term:
    norm = call.attrs.get("norm_coefficient", 0.0)
    return x * norm + gradient if norm else gradient


def _adam(call: Call, rate: Term, count: Term, own: list[Term]) -> list[Term]:
    """First and second moments, their bias corrected from the first update on."""
    x, gradient, first, second = own
    alpha, beta = call.attrs.get("alpha", 0.9), call.attrs.get("beta", 0.999)
    gradient = _regularised(call, x, gradient)
    first = first * alpha + gradient * (1 - alpha)
    second = second * beta + gradient * gradient * (1 - beta)
    root = second.of("Sqrt") + call.attrs.get("epsilon", 1e-6)
    grown = [1 - x.number(base).of("Pow", count) for base in (alpha, beta)]
    rate = (count > 0).where(rate * grown[1].of("Sqrt") / grown[0], rate)
    x = x - rate * (first / root)
    post = call.attrs.get("norm_coefficient_post", 0.0)
    return [x * (1 - post) if post else x, first, second]


def _adagrad(call: Call, rate: Term, count: Term, own: list[Term]) -> list[Term]:
    """The sum of squared gradients scales each step."""
    x, gradient, total = own
    decay = call.attrs.get("decay_factor", 0.0)
    rate = rate / (count * decay + 1) if decay else rate
    gradient = _regularised(call, x, gradient)
    total = total + gradient * gradient
    return [x - rate * gradient / (total.of("Sqrt") + call.attrs.get("epsilon", 1e-6)), total]


def _momentum(call: Call, rate: Term, count: Term, own: list[Term]) -> list[Term]:
    """A running gradient; Nesterov's form looks one step ahead."""
    x, gradient, running = own
    alpha, mode = call.attrs["alpha"], call.attrs["mode"]
    if mode not in ("standard", "nesterov"):
        raise ValueError(f"unknown mode {mode!r}")
    gradient = _regularised(call, x, gradient)
    weight = (count > 0).where(x.number(call.attrs["beta"]), 1)  # the first update takes the gradient as it is
    running = running * alpha + weight * gradient
    return [x - rate * (running if mode == "standard" else gradient + running * alpha), running]


_DOMAIN = "ai.onnx.preview.training"

RULES: dict[str, Rule] = {
    f"{_DOMAIN}.Adam": _rule(_adam, 2),
    f"{_DOMAIN}.Adagrad": _rule(_adagrad, 1),
    f"{_DOMAIN}.Momentum": _rule(_momentum, 1),
}
