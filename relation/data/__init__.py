"""From texts to token files (`corpus`, `tokenizer`), and from these to batches (`windows`)."""
