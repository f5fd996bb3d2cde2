"""Beyond the paper: what mixers recall; how models copy, read long texts and use Self."""
