"""One device: clock, memory, capabilities, state, datasheets.
Imports Utils.base, and nothing that knows of a run."""
