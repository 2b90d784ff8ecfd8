"""The host's memory: freed blocks stay with the process."""

import ctypes
import platform

M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4  # of malloc.h


def keep_freed_blocks():
    """Let glibc's malloc keep what is freed for the next step. No effect with another libc.

    By default it maps blocks of 32 MiB and more one by one and returns them at once, so each step
    waits for the kernel to find and clear their pages anew: logits of 512 tokens are 98 MiB.
    CUDA's allocator keeps freed blocks as well. The process stays as large as its largest step.
    See `man mallopt`.
    """
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_MAX, 0)
        libc.mallopt(M_TRIM_THRESHOLD, -1)
