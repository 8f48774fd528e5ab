"""Qualified names of CDI devices, `vendor/class=name`: their grammar, and nothing else.

The rules are those of the reference library (container-device-interface, pkg/parser), which is laxer than the
specification's prose: it bounds no length. Cost rule: hot, no imports.
"""

from __future__ import annotations


def parse_qualified_name(text: str) -> tuple[str, str, str] | None:
    """Vendor, class and device of a qualified name; None when it is none."""
    qualifier, equals, name = text.partition("=")
    found = parse_cdi_kind(qualifier)
    if not equals or found is None or not is_device_name(name):
        return None
    return (*found, name)


def parse_cdi_kind(text: str) -> tuple[str, str] | None:
    """Vendor and class of a kind, `vendor/class`; None when it is none. A path is never one."""
    vendor, slash, category = text.partition("/")
    if not slash or not is_kind_part(vendor) or not is_kind_part(category):
        return None
    return vendor, category


def is_kind_part(text: str) -> bool:
    """Whether text can be a vendor or a class: a letter, then letters, digits, `_-.`, a letter or digit last."""
    return text[:1].isalpha() and _is_valid_name(text, "_-.")


def is_device_name(text: str) -> bool:
    """Whether text can be a device's name: letters, digits and `_-.:`, a letter or digit first and last."""
    return text[:1].isalnum() and _is_valid_name(text, "_-.:")


def _is_valid_name(text: str, punctuation: str) -> bool:
    """Whether all is ASCII letters, digits and some signs, and the last is no sign."""
    if not text.isascii() or not text[-1:].isalnum():
        return False
    return all(letter.isalnum() or letter in punctuation for letter in text)
