"""Settings, health, workers, events, metrics and the entry point; no API server."""
