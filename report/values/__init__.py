"""What is measured and how it prints: a campaign's records as frames, a module a table family."""
