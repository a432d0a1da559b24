"""A Sphinx extension of a few lines: pages load each script once, and nothing that would ask the network.

Jupyter Book adds some inline scripts twice (the second raises an error in the console) and prepares live code through a
server on the internet, which this book does not use.
"""


def tidy(app, pagename, templatename, context, doctree):
    """Keep the first of equal scripts, and none of thebe's."""
    seen, kept = set(), []
    for script in context.get("script_files", []):
        key = (getattr(script, "attributes", None) or {}).get("body") or str(getattr(script, "filename", script))
        if key not in seen and "thebe" not in key.lower():
            kept.append(script)
        seen.add(key)
    context["script_files"] = kept


def setup(app):
    """Connect, after the theme and the other extensions."""
    app.connect("html-page-context", tidy, priority=950)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
