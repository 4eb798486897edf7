"""Conversations as text and tokens: what serving and training must do alike. Knows neither HTTP nor the model."""
