"""Status: pure functions from (spec, plan, what was observed) to the whole `.status` of an object.

Called by controllers, which observe and write. Does no I/O and reads no clock: time is an argument.
"""
