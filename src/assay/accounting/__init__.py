"""What a release costs: events, ε of events, calibration, schedules and the ledger."""
