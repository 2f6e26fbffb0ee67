"""Text in and out of token ids: tokenizers and chat templates. Imports no torch."""

from __future__ import annotations

from astrai.text.chat_encoding import encode_chat
from astrai.text.chat_template import ChatTemplate, TemplateError
from astrai.text.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "TemplateError", "Tokenizer", "encode_chat"]
