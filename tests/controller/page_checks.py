"""What is wrong with how a page looks in a browser: texts that overlap, are cut off, too small, too pale."""

from __future__ import annotations

from typing import Final

from tests.controller.headless_browser import Browser

FONT_PX_MIN: Final = 11
SCROLLS_BELOW_PX: Final = 1024
"""On narrower screens pictures may be scrolled sideways; the page itself never."""
WORD_MAX: Final = 14
"""Letters of a word that a table does not break."""
CONTRAST_TEXT: Final = 4.5
"""WCAG 2.2, AA, 1.4.3."""
CONTRAST_SHAPES: Final = 3.0
"""1.4.11."""

_TEXTS: Final = """
(() => {
  const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
  const luminance = colour => {
    const [r, g, b] = numbers(colour).slice(0, 3).map(v => v / 255)
      .map(v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (one, other) => {
    const [low, high] = [luminance(one), luminance(other)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  const ground = element => {
    for (let at = element; at; at = at.parentElement) {
      const colour = getComputedStyle(at).backgroundColor;
      const parts = numbers(colour);
      if (parts.length === 3 || parts[3] === 1) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  const scrolls = e => e.classList.contains('scroll') && getComputedStyle(e).overflowX === 'auto';
  const faults = [], boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode, element = node.parentElement, words = node.data.trim();
    if (!words || ['STYLE', 'SCRIPT', 'NOSCRIPT', 'title'].includes(element.tagName)) continue;
    const range = document.createRange();
    range.setStart(node, node.data.length - node.data.trimStart().length);
    range.setEnd(node, node.data.trimEnd().length);
    const rects = [...range.getClientRects()].filter(r => r.width > 0);
    if (!rects.length) continue;
    const look = getComputedStyle(element), svg = element.closest('svg');
    const scale = svg ? svg.getBoundingClientRect().width / svg.viewBox.baseVal.width : 1;
    const size = parseFloat(look.fontSize) * scale;
    if (size < %(font)s) faults.push(`too small: ${words} has ${size.toFixed(1)} px`);
    let behind = ground(element);
    if (svg && element.classList.contains('inside'))
      behind = getComputedStyle(element.parentElement.querySelector('.node')).fill;
    const ratio = contrast(svg ? look.fill : look.color, behind);
    if (ratio < %(text)s) faults.push(`too pale: ${words} has ${ratio.toFixed(2)}`);
    const clips = [], inside = element.closest('.scroll');
    for (let at = element; at && at !== document.body; at = at.parentElement)
      if (!scrolls(at) && (at.tagName === 'svg' || getComputedStyle(at).overflowX !== 'visible'))
        clips.push(at.getBoundingClientRect());
    for (const r of rects) {
      if (!inside && (r.left < -0.5 || r.right > document.documentElement.clientWidth + 0.5) ||
          clips.some(c => r.left < c.left - 1 || r.right > c.right + 1 ||
                          r.top < c.top - 2 || r.bottom > c.bottom + 2))
        faults.push(`cut off: ${words}`);
      boxes.push([r, words, node]);
    }
  }
  boxes.forEach(([a, one, node], place) => boxes.slice(place + 1).forEach(([b, other, that]) => {
    if (node !== that && Math.min(a.right, b.right) - Math.max(a.left, b.left) > 1 &&
        Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 2)
      faults.push(`overlap: ${one} and ${other}`);
  }));
  const behind = ground(document.body);
  for (const [selector, what] of [['.turn, .node.job, .fallback, .moving, .swatch', 'fill'],
                                  ['.tree, .committed, .aborted, .node, .move, .leads', 'stroke']])
    for (const shape of document.querySelectorAll(selector)) {
      const look = getComputedStyle(shape);
      const colour = shape.tagName === 'SPAN' ? look.backgroundColor : look[what];
      const ratio = contrast(colour, behind);
      if (ratio < %(shape)s) faults.push(`too pale: ${shape.getAttribute('class')} has ${ratio.toFixed(2)}`);
    }
  const wide = document.documentElement.scrollWidth;
  if (wide > innerWidth) faults.push(`too wide: ${wide} px of ${innerWidth}`);
  for (const e of document.querySelectorAll('body *')) {
    const b = e.getBoundingClientRect();
    if (b.width && !e.closest('.scroll > *') && (b.right > innerWidth + 0.5 || b.left < -0.5))
      faults.push(`too wide: ${e.outerHTML.slice(0, 100)}`);
  }
  for (const e of document.querySelectorAll('.scroll'))
    if (innerWidth >= %(wide)s && e.scrollWidth > e.clientWidth)
      faults.push(`too wide: ${e.innerHTML.slice(0, 100)} scrolls at ${innerWidth} px`);
  for (const [r, words, node] of boxes)
    if (node.parentElement.closest('td, th'))
      for (const found of node.data.matchAll(/\\S+/g)) {
        const range = document.createRange();
        range.setStart(node, found.index);
        range.setEnd(node, found.index + found[0].length);
        if (found[0].length <= %(word)s && new Set([...range.getClientRects()].map(r => r.top)).size > 1)
          faults.push(`broken word: ${found[0]}`);
      }
  return faults;
})()
"""


def faults(page: Browser) -> list[str]:
    """Of the page that is open, and of what its console has said. Each begins with its kind."""
    numbers = {"font": FONT_PX_MIN, "text": CONTRAST_TEXT, "shape": CONTRAST_SHAPES, "wide": SCROLLS_BELOW_PX}
    numbers["word"] = WORD_MAX
    found: list[str] = page.look(_TEXTS % numbers)
    return found + [f"console: {one}" for one in page.complaints]
