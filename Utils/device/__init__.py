"""One device: clock, memory, capabilities, state, datasheets, kinds of its kernels.
Imports Utils.base, and nothing that knows of a run."""
