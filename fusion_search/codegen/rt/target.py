"""The processor that kernels are compiled for.

Numba's own choice: the one at hand, unless ``NUMBA_CPU_NAME``, ``NUMBA_CPU_FEATURES`` or ``NUMBA_ENABLE_AVX`` say otherwise. An instruction
that LLVM is told to use and may not is the end of the process.
"""

from llvmlite import binding
from numba.core import config
from numba.core.codegen import get_host_cpu_features


def cpu_name() -> str:
    """Return LLVM's name of the processor."""
    return str(config.CPU_NAME or binding.get_host_cpu_name())


def feature_flags() -> str:
    """Return LLVM's features of the processor, as in ``+avx2,-avx512f``."""
    return str(get_host_cpu_features() if config.CPU_FEATURES is None else config.CPU_FEATURES)


def has(feature: str) -> bool:
    """Whether kernels may use a feature."""
    return f"+{feature}" in feature_flags().split(",")
