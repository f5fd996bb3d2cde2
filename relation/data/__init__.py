"""Texts to token files (`corpus`, `tokenizer`) and token files to batches (`windows`)."""
