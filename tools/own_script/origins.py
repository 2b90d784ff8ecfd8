"""Where in a script its models and optimizers were made, by the frames that ran then."""

import sys
import traceback
from itertools import islice

from tools.own_script.inspection import Spot
from tools.own_script.source_edits import Location, NoPlace, Source, targets_of, value_of
from tools.own_script.user_code import is_of_user


def of_model(module, frames):
    """Return the Spot of the outermost statement that assigned a module, or the reason.

    Its field `model` is the statement's own target, as it is written. frames: result of
    `frames_of_user` when the module was made.
    """
    return _spot(frames, _target_of, module, "no statement of your script made it")


def of_call(made):
    """Return the Spot of the call that is making an optimizer, or the reason."""
    return _spot(frames_of_user()[:1], _call_of, made, "no call of your script made it")


def frames_of_user():
    """Return pairs (frame, Location in it) of the user's code on the stack, innermost first."""
    frames = []
    for frame, _ in traceback.walk_stack(sys._getframe(1)):
        if is_of_user(frame.f_code.co_filename):
            positions = islice(frame.f_code.co_positions(), frame.f_lasti // 2, None)
            frames.append((frame, Location(*next(positions))))
    return frames


def _spot(frames, fields_of, made, reason):
    """Return the outermost Spot of an object in these frames, or one with the reason for none.

    fields_of: function that returns the Spot's fields, or raises NoPlace. reason: without frames.
    """
    spot = Spot("", None, {}, reason)
    for frame, location in frames:
        file = frame.f_code.co_filename
        try:
            spot = Spot(file, location, fields_of(Source.read(file), location, frame, made))
        except NoPlace as problem:
            if not spot.fields:
                spot = Spot(file, location, {}, str(problem))
    return spot


def _target_of(source, location, frame, module):
    for target in targets_of(source.statement_at(location)):
        if value_of(target, frame) is module:
            return {"model": source.text(target)}
    raise NoPlace("no name is assigned to it where it is made")


def _call_of(source, location, frame, made):
    function = source.call_at(location).func
    if value_of(function, frame) is type(made):
        return {}
    raise NoPlace("no call of your script made it")
