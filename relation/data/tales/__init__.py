"""The plots, scenes and phrases that `relation.data.stories` tells its stories with."""
