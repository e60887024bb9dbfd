"""Facts and tables on standard output: drawn on a terminal, plain aligned text in a pipe."""

import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

Row = tuple[str, ...]

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")


def of_size(size: int) -> str:
    """A number of bytes for a reader: 512 is "512 bytes", 1536 "1.5 KiB", 19403476800 "18.1 GiB"."""
    value, unit = float(size), 0
    while value >= 1024 and unit < len(UNITS) - 1:
        value, unit = value / 1024, unit + 1
    return f"{value:.1f} {UNITS[unit]}" if unit else f"{size} bytes"


def facts(title: str, rows: Sequence[Row]) -> None:
    """Named facts, one a line; an empty title continues the facts above."""
    table(title, (), rows)


def table(title: str, heads: Row, rows: Sequence[Row]) -> None:
    """Rows under heads. Cells are text: nothing in them is read as markup."""
    console = Console(highlight=False)
    if console.is_terminal:
        draw(console, title, heads, rows)
        return
    lines = [*([heads] if heads else []), *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(lines[0]))] if lines else []
    text = [title] if title else []
    for line in lines:
        cells = [cell.ljust(width) for cell, width in zip(line[:-1], widths, strict=False)]
        text.append("  ".join(("", *cells, line[-1])))
    sys.stdout.write("\n".join(text) + "\n")
    sys.stdout.flush()


def draw(console: Console, title: str, heads: Row, rows: Sequence[Row]) -> None:
    """The same for a terminal."""
    drawn = Table(show_header=bool(heads), box=None, pad_edge=True, padding=(0, 2, 0, 1))
    for column in range(max((len(row) for row in rows), default=1)):
        drawn.add_column(heads[column] if heads else "", style="bold" if column == 0 else "", overflow="fold")
    for row in rows:
        drawn.add_row(*(Text(cell) for cell in row))
    if title:
        console.print(Text(title, style="bold underline"))
    console.print(drawn)
