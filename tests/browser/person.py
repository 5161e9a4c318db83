"""A user with a browser; clicks are counted and the console is read."""

from typing import Any

TAGS = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"]
LOOK = """async (tags) => {
  // Links fade into the colours of another scheme.
  document.getAnimations().filter((one) => one instanceof CSSTransition).forEach((one) => one.finish());
  const found = await axe.run(document, { runOnly: tags });
  return found.violations.map((one) => `${one.id}: ${one.nodes.map((node) => node.target.join(" ")).join(", ")}`);
}"""
LOOKS = (("light", 1280), ("dark", 320))
"""Colour schemes and widths in which a page is examined."""
WIDE = "document.documentElement.scrollWidth > document.documentElement.clientWidth"


class Person:
    """The actions of a user on a page, and the visible text."""

    def __init__(self, page: Any, site: str, axe: str) -> None:
        self.page = page
        self.clicks = 0
        self.pastes = 0
        self.complaints: list[str] = []
        self._site = site
        self._axe = axe
        page.on("console", lambda said: self._complain(said.type, said.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def sign_in(self, name: str) -> None:
        self.go("/admin/login/")
        self.page.fill("input[name=username]", name)
        self.page.fill("input[name=password]", name)
        self.page.press("input[name=password]", "Enter")
        self.page.wait_for_url(lambda address: "/login/" not in address)

    def go(self, address: str) -> None:
        """Open a link, or the product's home."""
        self.page.goto(self._site + address)
        self.clicks = 0

    def click(self, words: str, *, within: str = "main") -> None:
        """Press the button or follow the link with this text."""
        self.clicks += 1
        place = self.page.locator(within).first
        found = place.locator("button:visible, a:visible, summary:visible").filter(has_text=words)
        found.first.click()

    def type(self, place: str, words: str) -> None:
        """Type and press Enter, which counts as one click."""
        self.clicks += 1
        self.page.fill(place, words)
        self.page.press(place, "Enter")

    def fill(self, place: str, words: str) -> None:
        """Fill a field, which counts as no click."""
        self.page.fill(place, words)

    def write(self, label: str, words: str) -> None:
        """Fill the field with this label, which counts as no click."""
        self.page.get_by_label(label).first.fill(words)

    def paste(self, label: str, words: str) -> None:
        """Paste a text into the field with this label."""
        self.pastes += 1
        self.write(label, words)

    def tick(self, label: str) -> None:
        """Tick the box with this label, which counts as a click."""
        self.clicks += 1
        self.page.get_by_label(label).first.check()

    def choose(self, label: str, option: str) -> None:
        """Choose an option of the field with this label, which counts as a click."""
        self.clicks += 1
        self.page.get_by_label(label).first.select_option(label=option)

    def sees(self, words: str, *, seconds: float = 60) -> None:
        """Wait until the page has this text."""
        self.page.locator("main").get_by_text(words).first.wait_for(timeout=seconds * 1000)

    def barriers(self) -> list[str]:
        """Return the findings of axe, and of horizontal scrolling, in each look."""
        # By evaluation, because the policy blocks a script element.
        self.page.evaluate(self._axe)
        size, found = self.page.viewport_size, []
        for scheme, width in LOOKS:
            self.page.emulate_media(color_scheme=scheme)
            self.page.set_viewport_size({**size, "width": width})
            # At the end of the page no bar covers anything; what has the focus is scrolled out from under it.
            self.page.evaluate("window.scrollTo(0, document.body.scrollHeight)")
            problems = [
                *self.page.evaluate(LOOK, TAGS),
                *(["wider than the screen"] if self.scrolls_sideways() else []),
            ]
            found += [f"{scheme}, {width} px: {problem}" for problem in problems]
        self.page.set_viewport_size(size)
        return found

    def scrolls_sideways(self) -> bool:
        """Return True if the page is wider than the screen."""
        return bool(self.page.evaluate(WIDE))

    def _complain(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "favicon.ico" not in text and " status of 4" not in text:
            self.complaints.append(text)
