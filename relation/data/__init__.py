"""Text to token files to windows: sources, tokenizer, preparation and the order of training."""
