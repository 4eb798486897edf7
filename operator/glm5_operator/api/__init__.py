"""The API objects as typed models, and what is true of every object: names, durations, quantities."""
