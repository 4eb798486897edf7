"""What the operator asks pods themselves, over HTTP: which adapters an engine has.

Used by the controllers. Pods are asked at their own addresses and never told anything; what they answer is data to be checked.
"""

from glm5_operator.pods.fetch import ANSWER_SECONDS, MOST_BYTES, PodReader

__all__ = ["ANSWER_SECONDS", "MOST_BYTES", "PodReader"]
