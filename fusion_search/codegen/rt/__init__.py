"""Run-time library of generated kernels: what their source imports and calls."""
