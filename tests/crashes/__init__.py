"""Every crash of a command: its calls, seen before they take place, and what a disk then holds."""
