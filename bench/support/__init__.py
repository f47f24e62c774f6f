"""Models, bundles, repositories and links that measurements and tests both need."""
