"""Pure: what the sources say of cards, how bad it is, and what to do about it. No I/O, no clock; time is an argument.

The node agent uses the parsers, the operator the grading and the remedy, the command line all of it on collected files.
"""
