"""Links and anchors of Markdown pages, as GitHub and the site read them."""

import re


def without_code(text):
    """Returns a page without its blocks of code."""
    return re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)


def slug(heading):
    """Returns the anchor of a heading."""
    heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def headings(text):
    """Yields (level, anchor, place) of the headings of a page."""
    # Blanked, so that places stay what they are.
    blank = re.sub(
        r"^```.*?^```",
        lambda m: re.sub(r"[^\n]", " ", m[0]),
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    for match in re.finditer(r"^(#+) (.*)$", blank, flags=re.MULTILINE):
        yield len(match[1]), slug(match[2]), match.start()


def anchors(text):
    """Returns the anchors of a page."""
    return {anchor for _, anchor, _ in headings(text)}


def section(text, anchor):
    """Returns what stands below a heading, up to the next of its level or above."""
    found = list(headings(text))
    at = next(i for i, (_, own, _) in enumerate(found) if own == anchor)
    level, _, start = found[at]
    ends = [place for other, _, place in found[at + 1 :] if other <= level]
    return text[start : ends[0] if ends else len(text)]


def links(text):
    """Returns the targets of the links and pictures of a page."""
    text = re.sub(r"`[^`\n]*`", "", without_code(text))
    return re.findall(r"\]\(([^()\s]+(?:\([^)]*\))?[^()\s]*)\)", text)
