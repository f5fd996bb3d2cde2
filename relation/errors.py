"""Exceptions whose message is meant for the user.

The message is one line: what is wrong, where, and what to do. The command line prints it without
a traceback and exits with status 2.
"""


class RelationError(Exception):
    """Base of the errors that the command line prints as one line."""


class InputError(RelationError, ValueError):
    """Something the user gave, or a file on disk, cannot be used."""


class RunError(RelationError, RuntimeError):
    """A run cannot go on, for example because of a non-finite loss or a full disk."""
