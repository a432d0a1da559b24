"""The rendered book in headless Chromium, opened from disk: ``make book`` first, or let ``make test`` do both.

Skipped, with the reason, where there is no Chromium or no rendered book; EASYDGL_REQUIRE_BOOK and
EASYDGL_REQUIRE_BROWSER turn those skips into failures (``make test`` and ``.ci/run`` set them).
"""

import json
import os
import re
import shutil
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
HTML = Path(os.environ.get("EASYDGL_BOOK_HTML", ROOT / "_build" / "html")).resolve()
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PHONE = {"width": 390, "height": 844}
DESKTOP = {"width": 1280, "height": 900}
TYPESET = "() => !window.MathJax || (MathJax.startup && MathJax.startup.promise.then(() => true))"


def toc():
    """Pages of the book, in reading order."""
    contents = yaml.safe_load((ROOT / "_toc.yml").read_text(encoding="utf-8"))
    return [contents["root"]] + [chapter["file"] for part in contents["parts"] for chapter in part["chapters"]]


def config():
    return yaml.safe_load((ROOT / "_config.yml").read_text(encoding="utf-8"))


PAGES = toc()


def lacking(variable, reason):
    """Skip, or fail where the thing was promised."""
    if os.environ.get(variable):
        pytest.fail(f"{reason} ({variable} is set)")
    pytest.skip(reason)


@pytest.fixture(scope="session")
def browser():
    """One Chromium for all tests."""
    if not (HTML / "index.html").exists():
        lacking("EASYDGL_REQUIRE_BOOK", "no rendered book in _build/html: run make book")
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    program = next((found for name in names if (found := shutil.which(name))), None)
    if program is None:
        lacking("EASYDGL_REQUIRE_BROWSER", "no Chromium on this machine")
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=program, args=FLAGS)
        yield chromium
        chromium.close()


class Visit:
    """A page that was opened, with what it asked for and complained about."""

    def __init__(self, browser, path, **options):
        options.setdefault("viewport", DESKTOP)
        self.context = browser.new_context(**options)
        self.page = self.context.new_page()
        self.requests, self.failed, self.errors = [], [], []
        self.page.on("request", lambda request: self.requests.append(request.url))
        self.page.on("requestfailed", lambda request: self.failed.append(f"{request.url}: {request.failure}"))
        self.page.on("console", lambda message: self.errors.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.errors.append(str(error)))
        self.page.goto((HTML / path).as_uri(), wait_until="load", timeout=180_000)
        self.page.evaluate(TYPESET)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.context.close()


@pytest.fixture(scope="module", params=PAGES)
def visit(request, browser):
    """Each page of the book in turn, on a desktop."""
    with Visit(browser, f"{request.param}.html") as opened:
        opened.name = request.param
        yield opened


def test_nothing_is_asked_of_the_network_and_nothing_fails(visit):
    foreign = [url for url in visit.requests if not url.startswith(("file:", "data:", "blob:"))]
    assert visit.requests and not foreign
    assert not visit.failed


def test_no_console_error(visit):
    assert not visit.errors


def test_math_is_typeset(visit):
    page = visit.page
    wanted = page.locator("article .math").count()
    assert page.locator("article .math mjx-container").count() >= wanted
    assert page.locator("mjx-merror, [data-mjx-error]").count() == 0
    undefined = page.locator("mjx-container mjx-mtext[style*='red'], mjx-container [mathcolor='red']")
    assert undefined.count() == 0, "a command MathJax does not know"
    text = page.evaluate(
        """() => { const copy = document.querySelector('article').cloneNode(true);
                   copy.querySelectorAll('pre, code, mjx-container, script, style').forEach(each => each.remove());
                   return copy.textContent; }"""
    )
    assert "$$" not in text and "\\(" not in text and "\\[" not in text
    assert "(???)" not in text and not re.search(r"\\(?:mathbf|frac|sum|lambda|label|ref)\b", text)
    assert not re.search(r"\{(?:eq|footcite|prf|ref|numref|doc)[:}\w]*\}?`", text), "a role that was not rendered"


def test_images_are_loaded_and_have_alternative_text(visit):
    images = visit.page.evaluate(
        "() => [...document.images].map(i => ({src: i.src.slice(-60), alt: i.alt, width: i.naturalWidth}))"
    )
    assert not [each for each in images if not each["alt"].strip()], "an image without alternative text"
    assert not [each for each in images if each["width"] == 0], "an image that did not load"


def test_every_internal_link_leads_somewhere(visit):
    links = visit.page.evaluate("() => [...document.querySelectorAll('article a[href], nav a[href]')].map(a => a.href)")
    for link in links:
        if link.startswith("file:"):
            path, _, anchor = link.removeprefix("file://").partition("#")
            target = Path(path.split("?")[0])
            assert target.exists(), f"{visit.name} links to {link}"
            if anchor and target.suffix == ".html":
                assert re.search(rf'id="{re.escape(anchor)}"', target.read_text(encoding="utf-8")), link


def test_previous_and_next(visit):
    place = PAGES.index(visit.name)
    for css, other in (("a.left-prev", place - 1), ("a.right-next", place + 1)):
        link = visit.page.locator(css)
        if 0 <= other < len(PAGES):
            assert link.get_attribute("href").endswith(Path(PAGES[other]).name + ".html")
        else:
            assert link.count() == 0


def test_colab_link(visit):
    source = ROOT / f"{visit.name}.ipynb"
    repository = config()["repository"]
    repo = repository["url"].removeprefix("https://github.com/")
    target = f"https://colab.research.google.com/github/{repo}/blob/{repository['branch']}/{visit.name}.ipynb"
    links = visit.page.locator("a[href*='colab.research.google.com']")
    found = {links.nth(i).get_attribute("href") for i in range(links.count())}
    if source.exists():
        assert found == {target} and links.count() >= 2  # the button and the badge
    else:
        assert not any(link.endswith(f"{visit.name}.md") for link in found)


def test_a_link_to_the_repository(visit):
    assert visit.page.locator(f"a[href^='{config()['repository']['url']}']").count() >= 1


@pytest.mark.parametrize("name", PAGES)
def test_a_phone_does_not_scroll_sideways(browser, name):
    with Visit(
        browser, f"{name}.html", viewport=PHONE, is_mobile=True, has_touch=True, device_scale_factor=2
    ) as opened:
        opened.page.evaluate("() => document.querySelectorAll('details').forEach(each => { each.open = true; })")
        opened.page.evaluate(
            "() => document.querySelectorAll('.toggle-button, .toggle-hidden').forEach("
            "each => each.classList.remove('toggle-hidden'))"
        )
        wide = opened.page.evaluate(
            """() => [document.documentElement.scrollWidth, document.body.scrollWidth,
                      window.visualViewport.width * window.visualViewport.scale]"""
        )
        culprits = opened.page.evaluate(
            """width => [...document.querySelectorAll('article *')].filter(each => {
                   if (each.getBoundingClientRect().right <= width + 1) return false;
                   for (let up = each.parentElement; up; up = up.parentElement)
                       if (['auto', 'scroll', 'hidden'].includes(getComputedStyle(up).overflowX)
                           && up.getBoundingClientRect().right <= width + 1
                           && up.closest('article')) return false;
                   return true; }).slice(0, 3).map(each => each.outerHTML.slice(0, 90))""",
            PHONE["width"],
        )
    assert max(wide) <= PHONE["width"], f"{wide}, because of {culprits}"
    assert not culprits


def test_the_front_page_leads_to_the_book(browser):
    page = browser.new_page()  # not a Visit: the page leaves at once, while a Visit would still be looking at it
    try:
        page.goto((HTML / "index.html").as_uri(), wait_until="commit")
        page.wait_for_url(f"**/{PAGES[0]}.html", timeout=60_000)
        assert config()["title"] in page.title()
    finally:
        page.close()


def test_search_finds_a_known_term(browser):
    with Visit(browser, "search.html") as opened:
        opened.page.goto((HTML / "search.html").as_uri() + "?q=intensity")
        opened.page.wait_for_selector("#search-results ul.search li a", timeout=60_000)
        links = opened.page.locator("#search-results ul.search li a")
        found = [links.nth(i).get_attribute("href") for i in range(links.count())]
        assert any("point_processes" in link for link in found)
        assert not [url for url in opened.requests if not url.startswith(("file:", "data:", "blob:"))]


def test_search_says_when_there_is_nothing(browser):
    with Visit(browser, "search.html") as opened:
        opened.page.goto((HTML / "search.html").as_uri() + "?q=zzyzxqqq")
        opened.page.wait_for_function(
            "() => /did not match any documents/.test(document.querySelector('#search-results').textContent)",
            timeout=60_000,
        )


def test_dark_mode_can_be_switched_on_and_figures_stay_on_white(browser):
    name = next(page for page in PAGES if page.endswith("point_processes"))
    with Visit(browser, f"{name}.html", color_scheme="light") as opened:
        page = opened.page
        theme = "() => document.documentElement.dataset.theme"
        background = "() => getComputedStyle(document.body).backgroundColor"
        seen = {page.evaluate(theme): page.evaluate(background)}
        for _ in range(3):
            page.locator("button.theme-switch-button:visible").first.click()
            seen[page.evaluate(theme)] = page.evaluate(background)
        assert set(seen) >= {"light", "dark"}

        def brightness(color):
            return sum(int(value) for value in re.findall(r"\d+", color)[:3]) / 3

        assert brightness(seen["light"]) > 200 and brightness(seen["dark"]) < 60
        page.evaluate("() => { document.documentElement.dataset.theme = 'dark'; }")
        look = page.evaluate(
            """() => [...document.querySelectorAll('article .cell_output img')].map(
                   each => [getComputedStyle(each).backgroundColor, getComputedStyle(each).filter])"""
        )
        assert look, "a chapter without figures"
        assert all(brightness(color) == 255 and style == "none" for color, style in look)


def test_solutions_are_closed_and_open_on_a_click(browser):
    name = next(page for page in PAGES if page.endswith("point_processes"))
    with Visit(browser, f"{name}.html") as opened:
        solution = opened.page.locator("div.solution.dropdown").first
        body = solution.locator("section").first
        assert not body.is_visible()
        solution.locator("button.toggle-button").click()
        assert body.is_visible()


def test_the_search_index_knows_every_page():
    if not (HTML / "searchindex.js").exists():
        lacking("EASYDGL_REQUIRE_BOOK", "no rendered book in _build/html: run make book")
    text = (HTML / "searchindex.js").read_text(encoding="utf-8")
    index = json.loads(text[text.index("{") : text.rindex("}") + 1])
    assert set(PAGES) <= set(index["docnames"])
