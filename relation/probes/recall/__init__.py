"""Multi-query associative recall (Arora et al. 2023): its sequences, and models trained on them."""
