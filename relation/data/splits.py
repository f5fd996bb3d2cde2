"""The names of a corpus's splits, and the token between its documents."""

SPLITS = ("train", "validation")
END_OF_TEXT = "<|endoftext|>"
