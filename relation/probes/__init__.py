"""What trained models do beyond the paper's measures: copying, long texts, the use of Self."""
