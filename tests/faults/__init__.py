"""The fault campaign: what happens to a campaign's work when the world around it breaks."""
