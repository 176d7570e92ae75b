"""PyTorch through `torch.compile`: Inductor's generated C++ kernels."""

from __future__ import annotations

import torch

from experiments.benchmarks.case import Case
from experiments.benchmarks.peers.base import Runner
from experiments.benchmarks.peers.torch_eager import runner


class Library:
    """Compiled for fixed shapes, by the default back end."""

    version = torch.__version__

    def __init__(self, threads: int) -> None:
        torch.set_num_threads(threads)

    def prepare(self, case: Case) -> Runner | str:
        torch.compiler.reset()
        return runner(case, lambda function: torch.compile(function, dynamic=False))
