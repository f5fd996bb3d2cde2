"""The machine at hand: GPUs and processes, and progress on its terminal."""
