"""The code that both tiers use: types, protocols, runtimes, bundles, routing, fleet documents and telemetry."""
