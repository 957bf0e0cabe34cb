"""Formats numbers, lists and quotations for sentences: singular or plural, and cuts between words."""

from collections.abc import Sequence


def counted(number: int, noun: str) -> str:
    """`1 launch`, `2 launches`."""
    if number == 1:
        return f"1 {noun}"
    return f"{number} {noun}{'es' if noun.endswith(('s', 'x', 'ch', 'sh')) else 's'}"


def is_(number: int) -> str:
    return "is" if number == 1 else "are"


def was(number: int) -> str:
    return "was" if number == 1 else "were"


def share(number: int, total: int, noun: str, verb: str = "") -> str:
    """`1 of 160 values is`, `2 of 160 values are`; `1 of 1 value differs` with `verb` "differ"."""
    plural = noun if total == 1 else f"{noun}s"
    said = is_(number) if not verb else (f"{verb}s" if number == 1 else verb)
    return f"{number} of {total} {plural} {said}"


def capitalized(text: str) -> str:
    """The text with a capital first letter; other letters are unchanged."""
    return f"{text[:1].upper()}{text[1:]}"


def listed(words: Sequence[str], last: str = "and") -> str:
    """`a`, `a and b`, `a, b and c`."""
    return f" {last} ".join(filter(None, (", ".join(words[:-1]), *words[-1:])))


def ended_again(ending: str) -> str:
    """Add "again": `raised: text` becomes `raised the error again: text`, `died` becomes `died again`."""
    how, colon, said = ending.rstrip(".").partition(": ")
    if how == "raised":
        return f"raised the error again{colon}{said}"
    return f"{how}{colon}{said} again" if "(" in how else f"{how} again{colon}{said}"


def quoted(text: str, most: int = 300) -> str:
    """Strip the text. If it is longer than `most`, cut it between words and end it with an ellipsis."""
    text = text.strip()
    if len(text) <= most:
        return text
    kept = text[: most - 2]
    word, space, _ = kept.rpartition(" ")
    return f"{word if space and len(word) > most // 2 else kept} …"
