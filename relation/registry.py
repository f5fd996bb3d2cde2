"""Registries, and the mark of code that only tells people: two forms that the code hash reads.

See `relation.pipeline.hashes` for what it makes of them.
"""

from collections.abc import Hashable
from typing import TypeVar

Thing = TypeVar("Thing")
Key = TypeVar("Key", bound=Hashable)
Entry = TypeVar("Entry")


def tells(thing: Thing) -> Thing:
    """Mark a function, class or method that changes no number of a record.

    It reports progress, locks, stops a job or stamps a record. The code hash leaves out its body,
    its calls' arguments and, of a marked method, the statements that call it.
    """
    return thing


class Registry(dict[Key, Entry]):
    """Entries by their `key`; write each as a call that begins with the words of its key.

    A job's code hash then covers only the entries that the job uses. Raises ValueError for two
    entries of one key.
    """

    def __init__(self, *entries: Entry):
        super().__init__((entry.key, entry) for entry in entries)
        if len(self) < len(entries):
            raise ValueError(f"two entries have one key: {[entry.key for entry in entries]}")
