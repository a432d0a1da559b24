"""One plot style for the whole book: a colour always means the same, and colour-blind readers can tell them apart."""

COLORS = {
    "event": "#0072B2",  # blue: an event, an observed fact
    "intensity": "#D55E00",  # vermilion: a rate, lambda
    "attention": "#009E73",  # green: an attention weight
    "low": "#56B4E9",  # sky: low frequency
    "high": "#CC79A7",  # purple: high frequency
    "second": "#E69F00",  # orange: the thing compared with
    "truth": "#000000",  # black: what is known to be true
    "muted": "#767676",  # grey: context
}
"""Okabe and Ito's palette, by meaning."""


def set_style():
    """Set matplotlib's defaults to the book's: white, quiet axes, readable at a phone's width, PNG at 100 dpi."""
    import matplotlib as mpl
    from cycler import cycler

    mpl.rcParams.update(
        {
            "figure.figsize": (6.4, 3.2),
            "figure.dpi": 100,
            "savefig.dpi": 100,
            "figure.facecolor": "white",
            "axes.facecolor": "white",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.titlesize": 11,
            "axes.labelsize": 10,
            "font.size": 10,
            "legend.frameon": False,
            "image.cmap": "viridis",
            "figure.constrained_layout.use": True,
            "axes.prop_cycle": cycler(
                color=[COLORS[k] for k in ("event", "intensity", "attention", "high", "second", "low")]
            ),
        }
    )
