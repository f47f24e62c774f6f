"""Who answers: pure functions over evidence, without I/O, so that device, simulator and replay run the same code."""
