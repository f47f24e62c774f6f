"""Rows of cells on a page. A row keeps its element while its cells change, and so the keyboard's focus its place."""

from __future__ import annotations

from collections.abc import Sequence

from nicegui import ui

from firstline.console.cells import Column, Row, plain

# What a cell says is text to Vue, never HTML: devices' words are not to be trusted.
_BODY = r"""
<q-tr :props="props" role="row">
  <q-td v-for="col in props.cols" :key="col.name" :props="props" role="cell"
        :class="col.value.tone ? 'tone-' + col.value.tone : ''">
    <span class="label" aria-hidden="true">{{ col.label }}: </span>
    <a v-if="col.value.href" :href="col.value.href">{{ col.value.text }}</a>
    <span v-else class="value">{{ col.value.text }}</span>
  </q-td>
</q-tr>
"""


class Rows:
    """A table.

    Args:
        label: its content, for screen readers.
        columns: of it.
        empty: the text of an empty table.
    """

    def __init__(self, label: str, columns: Sequence[Column], empty: str) -> None:
        heads = [
            {
                "name": column.name,
                "label": column.label,
                "field": column.name,
                "align": "right" if column.number else "left",
            }
            for column in columns
        ]
        self._shown: list[Row] = []
        self._table = ui.table(columns=heads, rows=[], row_key="key").classes("rows")
        self._table.props('flat bordered dense wrap-cells hide-no-data role="group"').props["aria-label"] = label
        self._table.add_slot("body", _BODY)
        self._empty = ui.label(empty).classes("empty")
        for each in (self._table, self._empty):  # nothing is said of either before somebody asked
            each.set_visibility(False)

    def show(self, rows: Sequence[Row]) -> None:
        """Shows these rows instead; nothing is sent where they are the same."""
        self._empty.set_visibility(not rows)
        self._table.set_visibility(bool(rows))
        if list(rows) != self._shown:
            self._shown = list(rows)
            self._table.rows = [plain(row) for row in rows]
