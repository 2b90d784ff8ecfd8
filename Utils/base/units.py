"""Units of memory, in bytes: binary ones, so GiB is not GB."""

MIB = 2**20
GIB = 2**30
