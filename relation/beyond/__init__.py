"""Measures beyond the paper: associative recall, and texts longer than the training context."""
