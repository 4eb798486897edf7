"""Reinforcement learning: advantages, losses, the buffer of rollouts. Pure numbers over the trainer's parts; knows no engine."""
