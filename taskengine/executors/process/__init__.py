"""Bodies in child processes: `executor` is the parent's door, `child` the other end, `frames` what they say.

Nothing is imported here, since the child loads this package too and must not pay for the parent's half.
"""
