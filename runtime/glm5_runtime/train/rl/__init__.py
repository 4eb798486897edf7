"""Reinforcement learning: answers by our own engine, rewards, advantages, losses, and the step of the loop that is made of them.

`run` puts it together. Numbers alone, without engine or loop: `advantages`, `head`, `losses`, `replay`.
"""
