"""The look of every page: colours of both themes, and Tailwind components that pages use as classes.

The browser remembers the theme in a cookie; without one, the page follows the system.
"""

from __future__ import annotations

from pathlib import Path

from nicegui import ui

COOKIE = "firstline-theme"
_THEMES = {"light": False, "dark": True}
_STYLE = Path(__file__).with_name("theme.css").read_text()
_TOGGLE = f"""() => {{
  const dark = document.body.classList.contains('body--dark')
  document.cookie = `{COOKIE}=${{dark ? 'light' : 'dark'}}; path=/; max-age=31536000; samesite=lax`
  location.reload()
}}"""


def apply() -> None:
    """Gives the page the look, in the theme that this browser has chosen."""
    ui.add_head_html(f'<style type="text/tailwindcss">{_STYLE}</style>')
    ui.colors(primary="#0b5cad", negative="#b3132b", positive="#0a6b2d")
    chosen = ui.context.client.request.cookies.get(COOKIE, "")
    ui.dark_mode(_THEMES.get(chosen))


def toggle() -> None:
    """Adds the button that changes between the themes."""
    button = ui.button(icon="contrast", color=None).props('flat round aria-label="Change between light and dark"')
    button.classes("text-ink").on("click", js_handler=_TOGGLE)
