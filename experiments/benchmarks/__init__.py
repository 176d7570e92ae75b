"""What the kernels are worth: the same workloads and models in this project and in seven others, in one run on one machine."""
