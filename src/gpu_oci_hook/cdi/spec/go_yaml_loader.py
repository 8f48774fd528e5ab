"""Parse YAML with PyYAML's Python parser as go-yaml 2 does, a translation of an old libyaml.

Import budget: cold.
"""

from __future__ import annotations

from typing import Any

import yaml

_BLANKS = "\0 \t\r\n\x85\u2028\u2029"


class GoYamlLoader(yaml.SafeLoader):
    """PyYAML's Python parser, changed to treat tabs between tokens, directives and ends of plain scalars like go-yaml.

    Without it, JSON that is indented with tabs would not be YAML.
    """

    def scan_to_next_token(self) -> None:
        """Skip blanks, comments and line breaks before a token."""
        while True:
            # libyaml, yaml_parser_scan_to_next_token: a tab is not a blank where block indentation could begin.
            while self.peek() == " " or (self.peek() == "\t" and (self.flow_level or not self.allow_simple_key)):
                self.forward()
            if self.peek() == "#":
                while self.peek() not in "\0\r\n\x85\u2028\u2029":
                    self.forward()
            if not self.scan_line_break():  # type: ignore[no-untyped-call]
                return
            if not self.flow_level:
                self.allow_simple_key = True

    def scan_plain_spaces(self, indent: int, start_mark: Any) -> list[str]:
        """Scan the blanks after a part of a plain scalar."""
        length = 0
        while self.peek(length) in " \t":
            length += 1
        spaces: str = self.prefix(length)
        self.forward(length)
        if self.peek() in "\r\n\x85\u2028\u2029":
            return super().scan_plain_spaces(indent, start_mark) or []
        return [spaces] if spaces else []

    def scan_plain(self) -> yaml.ScalarToken:
        """Scan a plain scalar: inside brackets `,?[]{}` end it, and a colon ends it only before a blank."""
        pieces: list[str] = []
        spaces: list[str] = []
        start = end = self.get_mark()
        indent = self.indent + 1
        while self.peek() != "#":
            length = 0
            while (letter := self.peek(length)) not in _BLANKS:
                if letter == ":" and self.peek(length + 1) in _BLANKS:
                    break
                if self.flow_level and letter in ",?[]{}":
                    break
                length += 1
            if not length:
                break
            self.allow_simple_key = False
            pieces += [*spaces, self.prefix(length)]
            self.forward(length)
            end = self.get_mark()
            spaces = self.scan_plain_spaces(indent, start)
            if not spaces or (not self.flow_level and self.column < indent):
                break
        return yaml.ScalarToken("".join(pieces), True, start, end)

    def scan_directive_name(self, start_mark: Any) -> str:
        """Scan the name of a directive; only YAML and TAG are valid."""
        name: str = super().scan_directive_name(start_mark)  # type: ignore[no-untyped-call]
        if name not in ("YAML", "TAG"):
            raise yaml.scanner.ScannerError(None, None, "found unknown directive name", start_mark)
        return name
