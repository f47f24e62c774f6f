"""The demo: both tiers as processes, real traffic, and a link that is cut."""
