"""Runs over several processes on this machine, by gloo."""
