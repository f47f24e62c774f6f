"""The language that both tiers speak: types, protocol, runtimes, bundles, routing, telemetry."""
