"""Events as torch.profiler gives them, for a StepBreakdown without a profile."""

from itertools import count
from types import SimpleNamespace

from torch.autograd import DeviceType
from torch.autograd.profiler_util import EventList, FunctionEvent

from Utils.profile.step_breakdown import break_down

IDS = count(1)


def kineto_event(event, types=(), bytes=0):
    """Return what `break_down` asks of an event in torch's kineto_results."""
    facts = {"correlation_id": event.id, "name": event.name, "dtypes": types, "nbytes": bytes}
    facts |= {"device_type": event.device_type, "start_ns": event.time_range.start * 1e3}
    return SimpleNamespace(**{name: lambda value=value: value for name, value in facts.items()})


def event(name, start, us, thread=1, **facts):
    """An operator, with `is_user_annotation` a range, of so many microseconds."""
    facts = {"id": next(IDS), "input_shapes": ()} | facts
    return FunctionEvent(name=name, thread=thread, start_us=start, end_us=start + us, **facts)


def annotation(name, start, us, thread=1, **facts):
    return event(name, start, us, thread, is_user_annotation=True, **facts)


def on_gpu(name, start, us, **facts):
    return event(name, start, us, 7, device_type=DeviceType.CUDA, **facts)


def launched(name, host_us, device_us, us, thread=1):
    """A launch on the host, and the kernel that it launched."""
    launch = event("cudaLaunchKernel", host_us, 3, thread)
    return [launch, on_gpu(name, device_us, us, id=launch.id)]


def steps(number, us):
    return [annotation("ProfilerStep*", step * us, us) for step in range(number)]


def shaped(name, start, us, *shapes, type="float"):
    """An operator on tensors: its event, with their types in its attribute `types`."""
    operator = event(name, start, us, input_shapes=shapes)
    operator.types = [type] * len(shapes)
    return operator


def breakdown_of(events, allocations=(), **options):
    """The Breakdown of events. allocations: (microsecond, bytes, DeviceType)."""
    kineto_events = [kineto_event(each, getattr(each, "types", ())) for each in events]
    for at_us, size, device_type in allocations:
        memory = FunctionEvent(0, "[memory]", 1, at_us, at_us, device_type=device_type)
        kineto_events.append(kineto_event(memory, bytes=size))
        usage = "cpu_memory_usage" if device_type == DeviceType.CPU else "device_memory_usage"
        for step in events:
            if (
                step.name == "ProfilerStep*"
                and step.time_range.start <= at_us < step.time_range.end
            ):
                setattr(step, usage, getattr(step, usage) + size)
    in_order = EventList(sorted(events, key=lambda e: (e.time_range.start, -e.time_range.end)))
    in_order._build_tree()
    return break_down(in_order, kineto_events, **options)
