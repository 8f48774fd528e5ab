"""The table of engines and checks that pytest prints at the end."""

from __future__ import annotations

WIDEST = 200


class Matrix:
    """The outcome of each check by engine, in the order of the first checks."""

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, str]] = {}
        self.columns: list[str] = []

    def note(self, row: str, column: str, word: str) -> None:
        """Record the outcome of a check."""
        self.rows.setdefault(row, {})[column] = word
        if column not in self.columns:
            self.columns.append(column)

    def table(self) -> str:
        """Format the table; one that is too wide becomes a list of columns for each row and outcome."""
        first = max(len(row) for row in self.rows)
        widths = {
            column: max(len(column), *(len(row.get(column, "-")) for row in self.rows.values()))
            for column in self.columns
        }
        lines = [" " * first + "  " + "  ".join(column.ljust(widths[column]) for column in self.columns)]
        for name, row in self.rows.items():
            cells = (row.get(column, "-").ljust(widths[column]) for column in self.columns)
            lines.append(f"{name.ljust(first)}  {'  '.join(cells)}")
        table = "\n".join(line.rstrip() for line in lines)
        return table if len(lines[0]) <= WIDEST else self._list_outcomes()

    def _list_outcomes(self) -> str:
        lines = []
        for name, row in self.rows.items():
            for word in dict.fromkeys(row.values()):
                columns = [column for column in self.columns if row.get(column) == word]
                lines.append(f"{name}: {word} ({len(columns)}): {', '.join(columns)}")
        return "\n".join(lines)


MATRIX = Matrix()
