"""The main job, end to end: both tiers as processes, real traffic, a link that is really cut."""
