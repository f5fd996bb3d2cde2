"""Whether a cell agrees with the paper's, a claim holds, and which reading is chosen."""
