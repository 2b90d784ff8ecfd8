"""Steps under torch.profiler, after the timed ones."""

import torch

PROFILED = 4  # steps that are added up
ALL_PROFILED = 1 + PROFILED + 1  # one before them is discarded, one after ends the last
WAIT = "wait for the batch"  # name of the range around it in the trace


class ProfiledSteps:
    """Steps under torch.profiler.

    After them, profile is torch's profile, and clock_ms has the milliseconds of the PROFILED steps.
    """

    def boundaries(self, hardware):
        """Yield at the beginning of each step."""
        marks = []
        with torch.profiler.profile(
            schedule=torch.profiler.schedule(wait=0, warmup=1, active=PROFILED + 1, repeat=1),
            record_shapes=True,
            profile_memory=True,
        ) as self.profile:
            for _ in range(ALL_PROFILED):
                marks.append(hardware.mark())
                yield
                self.profile.step()
        self.clock_ms = hardware.elapsed_ms(marks)[1:]
