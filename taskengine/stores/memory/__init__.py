"""A store in memory: a verified fake that passes the same contract suite as the durable ones.

For tests and for work that may die with the process. As atomic as the others: what a transaction changes is noted
first, and put back if the block raises.
"""

from taskengine.stores.memory.store import MemoryStore as MemoryStore

__all__ = ["MemoryStore"]
