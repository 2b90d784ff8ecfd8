"""Steps under torch.profiler, after those that are timed."""

import torch

STEPS = 4  # are summed up; one before them is discarded, one after closes the last
ALL_STEPS = 1 + STEPS + 1
WAIT = "wait for the batch"  # the range around it in the trace


class ProfiledSteps:
    """A few steps under the profiler. After them, profile: torch's; clock_ms: times of STEPS."""

    def boundaries(self, hardware):
        """Yield at the beginning of each step."""
        marks = []
        schedule = torch.profiler.schedule(wait=0, warmup=1, active=STEPS + 1, repeat=1)
        options = {"schedule": schedule, "record_shapes": True, "profile_memory": True}
        with torch.profiler.profile(**options) as self.profile:
            for _ in range(ALL_STEPS):
                marks.append(hardware.mark())
                yield
                self.profile.step()
        self.clock_ms = hardware.elapsed_ms(marks)[1:]
