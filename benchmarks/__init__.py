"""How fast the engine is, each time beside a floor that does without it. Run `python -m benchmarks NAME`."""
