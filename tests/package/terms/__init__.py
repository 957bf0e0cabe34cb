"""Terms: read from kernels, evaluated, bounded, worded."""
