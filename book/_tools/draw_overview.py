"""Draw ``book/figures/overview.svg``, the picture of encode, train, interpret: ``make figures``.

Plain SVG with the book's colours. The curve is a softplus intensity computed here, not a sketch of one.
"""

from math import exp, log1p
from pathlib import Path

from easydgl_mini.plotting import COLORS

WIDTH, HEIGHT = 960, 330
EVENTS = (0.9, 1.5, 3.6, 4.1, 4.5)
FONT = "font-family='Helvetica,Arial,DejaVu Sans,sans-serif'"


def text(x, y, words, size=15, color="#222222", anchor="middle", weight="normal", style="normal"):
    """A line of text."""
    look = f"font-size='{size}' fill='{color}' text-anchor='{anchor}' font-weight='{weight}' font-style='{style}'"
    return f"<text x='{x}' y='{y}' {FONT} {look}>{words}</text>"


def line(x1, y1, x2, y2, color, width=2.0, extra=""):
    """A straight line."""
    return f"<line x1='{x1}' y1='{y1}' x2='{x2}' y2='{y2}' stroke='{color}' stroke-width='{width}' {extra}/>"


def circle(x, y, r, fill, label=""):
    """A node, with a letter in it."""
    mark = text(x, y + 5, label, 14, "#ffffff", weight="bold") if label else ""
    return f"<circle cx='{x}' cy='{y}' r='{r}' fill='{fill}' stroke='#ffffff' stroke-width='2'/>{mark}"


def panel(x, title, caption):
    """The frame of one of the three parts."""
    frame = f"<rect x='{x}' y='14' width='276' height='302' rx='12' fill='#ffffff' stroke='#c8c8c8'/>"
    return frame + text(x + 138, 44, title, 20, weight="bold") + text(x + 138, 300, caption, 13.5, COLORS["muted"])


def arrow(x):
    """From one part to the next."""
    return line(x, 165, x + 20, 165, "#222222", 3) + f"<path d='M{x + 18} 157 l12 8 l-12 8 z' fill='#222222'/>"


def intensity(t):
    """A rate that every event raises and time lowers again: softplus of base plus decaying excitation."""
    drive = -1.6 + sum(2.3 * exp(-1.3 * (t - s)) for s in EVENTS if s < t)
    return log1p(exp(drive))


def encode(x):
    """A node that listens to neighbours of two clusters, and the rate of one cluster between events."""
    u, others = (x + 138, 122), [(x + 50, 82, "event"), (x + 52, 152, "event"), (x + 228, 96, "second")]
    parts = [line(a, b, *u, COLORS["attention"], w) for (a, b, _), w in zip(others, (6, 3, 4), strict=True)]
    parts += [circle(a, b, 14, COLORS[c], "i") for a, b, c in others] + [circle(*u, 18, "#222222", "u")]
    left, base, wide, high = x + 28, 268, 220, 38
    points = [(left + wide * i / 220, base - high * intensity(6 * i / 220)) for i in range(221)]
    curve = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
    parts.append(f"<polyline points='{curve}' fill='none' stroke='{COLORS['intensity']}' stroke-width='2.5'/>")
    parts.append(line(left, base, left + wide, base, "#222222", 1.5))
    parts += [line(left + wide * s / 6, base, left + wide * s / 6, base - 12, COLORS["event"], 3) for s in EVENTS]
    parts.append(text(left + wide, base - 46, "λ(t)", 15, COLORS["intensity"], anchor="end", style="italic"))
    return "".join(parts)


def train(x):
    """A history with one event hidden, and the likelihood of when the events came."""
    parts, names = [], ("A", "B", "?", "A", "C")
    for i, name in enumerate(names):
        left, hidden = x + 22 + 48 * i, name == "?"
        fill, dash = ("#ffffff", "stroke-dasharray='5 3'") if hidden else (COLORS["event"], "")
        parts.append(
            f"<rect x='{left}' y='88' width='40' height='40' rx='6' fill='{fill}' stroke='{COLORS['event']}' "
            f"stroke-width='2' {dash}/>"
        )
        parts.append(text(left + 20, 114, name, 18, COLORS["event"] if hidden else "#ffffff", weight="bold"))
    parts.append(text(x + 138, 158, "guess the hidden event", 14.5))
    parts.append(text(x + 138, 190, "+", 22, weight="bold"))
    parts.append(text(x + 138, 222, "explain when events come:", 14.5))
    parts.append(text(x + 138, 254, "Σ log λ(tᵢ) − ∫ λ(t) dt", 19, COLORS["intensity"], style="italic"))
    return "".join(parts)


def interpret(x):
    """The energy of a prediction per graph frequency, with one band taken away."""
    heights = (128, 104, 86, 92, 60, 46, 50, 30, 24, 18, 22, 12)
    parts, base = [], 232
    for i, h in enumerate(heights):
        left, gone = x + 30 + 18.3 * i, 3 <= i <= 5
        color = COLORS["low"] if i < 6 else COLORS["high"]
        look = f"fill='none' stroke='{color}' stroke-width='1.5' stroke-dasharray='4 3'" if gone else f"fill='{color}'"
        parts.append(f"<rect x='{left:.1f}' y='{base - h}' width='13' height='{h}' {look}/>")
    parts.append(line(x + 24, base, x + 252, base, "#222222", 1.5))
    parts.append(text(x + 30, base + 20, "low", 13.5, anchor="start"))
    parts.append(text(x + 246, base + 20, "high frequency", 13.5, anchor="end"))
    parts.append(text(x + 178, 92, "take a band away:", 14.5) + text(x + 178, 112, "what is lost?", 14.5))
    return "".join(parts)


def main():
    """Write the picture."""
    said = (
        "Three parts of the book. Encode: a node listens to its neighbours, weighted by attention and by a rate that "
        "rises at events and falls between them. Train: guess a hidden event, and explain when events come. Interpret: "
        "remove a band of graph frequencies from a prediction and see what is lost."
    )
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 {WIDTH} {HEIGHT}' width='{WIDTH}' height='{HEIGHT}' "
        "role='img' aria-labelledby='t d'>",
        f"<title id='t'>Encode, train, interpret</title><desc id='d'>{said}</desc>",
        f"<rect width='{WIDTH}' height='{HEIGHT}' rx='14' fill='#f6f6f6'/>",
        panel(16, "Encode", "attention that knows the time") + encode(16),
        arrow(303),
        panel(342, "Train", "one recipe, three tasks") + train(342),
        arrow(629),
        panel(668, "Interpret", "which frequencies carry the answer") + interpret(668),
        "</svg>",
    ]
    path = Path(__file__).resolve().parents[1] / "figures" / "overview.svg"
    path.write_text("\n".join(parts) + "\n", encoding="utf-8")
    print(f"drew {path.relative_to(path.parents[2])}")


if __name__ == "__main__":
    main()
