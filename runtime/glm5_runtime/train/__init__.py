"""Training: data, LoRA and full fine-tuning, checkpoints. Uses the model; knows neither engine nor server."""
