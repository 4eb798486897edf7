"""What is wrong with a conversation, in words for whoever wrote it; the server makes a 400 of it, training a line of its report."""

from __future__ import annotations


class ConversationError(ValueError):
    """A conversation that can't be rendered; `field` is the dotted path of what is at fault, such as `messages[2].content`.

    The message names the field and what to change; it never repeats the conversation's text.
    """

    def __init__(self, message: str, field: str) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
