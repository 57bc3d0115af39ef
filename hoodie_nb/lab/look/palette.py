"""Colours and text sizes of all pictures, widgets, pages and charts.

*Colours* are those of Okabe and Ito, which colour-blind people can tell apart, and a grey. Each is
visible on a light and on a dark page; amber only with an outline. A colour never stands alone: a
shape or a word says the same.

*Themes.* `THEME` is the style of an element in which `INK`, `PAPER` and the others exist: they are
JupyterLab's variables, else those of VS Code. Where neither exists, as in Colab, all have the light
theme's values: ink is always drawn on its own paper.
"""

BLUE = "#0072b2"
AMBER = "#e69f00"
GREEN = "#009e73"
RED = "#d55e00"
PURPLE = "#cc79a7"
GREY = "#737373"
TEXT_PX = 12
NOTE_PX = 11

LIGHT = {
    "ink": "#1f2328",
    "faint": "#57606a",
    "paper": "#ffffff",
    "shade": "#f1f3f5",
    "line": "#8c959f",
    "blue": BLUE,
}
DARK = {
    "ink": "#f0f3f6",
    "faint": "#b1bac4",
    "paper": "#0d1117",
    "shade": "#1c2229",
    "line": "#7d8590",
    "blue": "#56b4e9",
}
_VARIABLES = {
    "ink": ("--jp-ui-font-color1", "--vscode-editor-foreground"),
    "faint": ("--jp-ui-font-color2", "--vscode-editor-foreground"),
    "paper": ("--jp-layout-color1", "--vscode-editor-background"),
    "shade": ("--jp-layout-color2", "--vscode-editor-background"),
    "line": ("--jp-border-color0", "--vscode-editor-foreground"),
}
THEME = ";".join(
    f"--hn-{name}:var({ours},var({theirs},{LIGHT[name]}))"
    for name, (ours, theirs) in _VARIABLES.items()
)
INK, FAINT, PAPER, SHADE, LINE = (f"var(--hn-{name})" for name in _VARIABLES)


def painted(picture: str, theme: dict[str, str]) -> str:
    """Return a picture with the colours of one theme, for readers without variables."""
    picture = picture.replace(f"{THEME};", "").replace(BLUE, theme["blue"])
    for name in _VARIABLES:
        picture = picture.replace(f"var(--hn-{name})", theme[name])
    return picture
