"""The rules of the engine as pure functions and values: no I/O, no clock, no chance, no event loop."""
