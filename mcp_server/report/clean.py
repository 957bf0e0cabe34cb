"""Text of any origin made harmless: logs and names are data, wherever they come from."""

from __future__ import annotations

import re
from typing import TypeVar

from pydantic import BaseModel

Model = TypeVar("Model", bound=BaseModel)

# Control characters, which HTML forbids, and those that turn the direction of the text around them.
UNWANTED = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)


def cleaned(model: Model) -> Model:
    """The same record, its texts without unwanted characters."""
    return type(model).model_validate(_cleaned(model.model_dump(mode="json")))


def clean_text(text: str) -> str:
    """`text` with a replacement for each unwanted character; carriage returns end lines."""
    return UNWANTED.sub("�", text.replace("\r\n", "\n").replace("\r", "\n"))


def _cleaned(value: object) -> object:
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, dict):
        return {clean_text(str(name)): _cleaned(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_cleaned(item) for item in value]
    return value
