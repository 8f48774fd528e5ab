"""Parse qualified names of CDI devices, `vendor/class=name`.

The rules are those of the reference library (container-device-interface, pkg/parser). Unlike the specification's text
it does not limit the length.

Import budget: CDI.
"""

from __future__ import annotations


def parse_qualified_name(text: str) -> tuple[str, str, str] | None:
    """Return vendor, class and device of a qualified name, or None when the text is not one."""
    qualifier, equals, name = text.partition("=")
    kind = parse_cdi_kind(qualifier)
    if not equals or kind is None or not is_device_name(name):
        return None
    return (*kind, name)


def parse_cdi_kind(text: str) -> tuple[str, str] | None:
    """Return vendor and class of a kind, `vendor/class`, or None when the text is not one. A path never is."""
    vendor, slash, category = text.partition("/")
    if not slash or not is_kind_part(vendor) or not is_kind_part(category):
        return None
    return vendor, category


def is_kind_part(text: str) -> bool:
    """Tell whether text can be a vendor or a class: a letter, then letters, digits, `_-.`, a letter or digit last."""
    return text[:1].isalpha() and _is_valid_name(text, "_-.")


def is_device_name(text: str) -> bool:
    """Tell whether text can be a device's name: letters, digits and `_-.:`, a letter or digit first and last."""
    return text[:1].isalnum() and _is_valid_name(text, "_-.:")


def _is_valid_name(text: str, punctuation: str) -> bool:
    """Tell whether text is ASCII letters, digits and this punctuation, with a letter or digit last."""
    if not text.isascii() or not text[-1:].isalnum():
        return False
    return all(character.isalnum() or character in punctuation for character in text)
