"""numexpr: an expression over arrays, evaluated block by block."""

from __future__ import annotations

from typing import Any

import numexpr
import numpy as np

from experiments.benchmarks.case import Case, NotInLanguage
from experiments.benchmarks.peers.base import Runner


class Expression:
    """Text that numexpr evaluates."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __add__(self, other: Any) -> Expression:
        return Expression(f"({self.text}+{_text(other)})")

    def __sub__(self, other: Any) -> Expression:
        return Expression(f"({self.text}-{_text(other)})")

    def __mul__(self, other: Any) -> Expression:
        return Expression(f"({self.text}*{_text(other)})")

    def __truediv__(self, other: Any) -> Expression:
        return Expression(f"({self.text}/{_text(other)})")

    def __neg__(self) -> Expression:
        return Expression(f"(-{self.text})")


def _text(value: Any) -> str:
    return value.text if isinstance(value, Expression) else repr(float(value))


class Words:
    """The operators of the workloads as text; most have none."""

    def __init__(self) -> None:
        self.whole: str | None = None

    def __getattr__(self, word: str) -> Any:
        if word in ("exp", "log", "tanh", "sqrt", "abs"):
            return lambda x: Expression(f"{word}({x.text})")
        raise NotInLanguage(word)

    def relu(self, x: Expression) -> Expression:
        return Expression(f"maximum({x.text},zero)")

    def sigmoid(self, x: Expression) -> Expression:
        return Expression(f"(1.0/(1.0+exp(-{x.text})))")

    def silu(self, x: Expression) -> Expression:
        return Expression(f"({x.text}/(1.0+exp(-{x.text})))")

    def gelu_tanh(self, x: Expression) -> Expression:
        t = x.text
        return Expression(f"(0.5*{t}*(1.0+tanh({(2 / np.pi) ** 0.5}*({t}+0.044715*{t}*{t}*{t}))))")

    def mean_all(self, x: Expression) -> Expression:
        self.whole = x.text
        return Expression(f"sum({x.text})")


class Library:
    """One expression an output."""

    version = numexpr.__version__

    def __init__(self, threads: int) -> None:
        numexpr.set_num_threads(threads)

    def prepare(self, case: Case) -> Runner | str:
        if case.form is None:
            return "takes no ONNX models"
        words = Words()
        try:
            made = case.form(words, *(Expression(name) for name in (*case.feeds, *case.weights)))
        except NotInLanguage as word:
            return f"has no {word}"
        texts = [expression.text for expression in (made if isinstance(made, tuple) else (made,))]
        names: dict[str, Any] = {**case.feeds, **case.weights, "zero": np.float32(0)}
        whole = words.whole is not None
        count = np.float32(max(array.size for array in case.feeds.values()))

        def fresh() -> Any:
            results = tuple(numexpr.evaluate(text, local_dict=names, global_dict={}) for text in texts)
            return results[0] / count if whole else results

        if whole:
            return Runner(fresh)
        kept = [np.empty_like(result) for result in fresh()]

        def preallocated() -> Any:
            for text, out in zip(texts, kept, strict=True):
                numexpr.evaluate(text, local_dict=names, global_dict={}, out=out)
            return tuple(kept)

        return Runner(fresh, preallocated)
