"""What generated kernels call: intrinsics, mathematics, lanes, library kernels, and the driver that runs plans."""
