"""The page at / in a real browser: tokens by origin, live figures, the race and its verdict, keys, and no request elsewhere."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.server.conftest import PROMPT, Running

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = os.environ.get("HEADSTART_CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = [
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
needs_browser = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: install Debian's chromium or set HEADSTART_CHROMIUM")


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as p:
        opened = p.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield opened
        opened.close()


@pytest.fixture
def page(browser: Any, server: Running) -> Iterator[Any]:
    context = browser.new_context()
    opened = context.new_page()
    asked: list[str] = []
    problems: list[str] = []
    opened.on("request", lambda r: asked.append(r.url))
    opened.on("console", lambda m: problems.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda e: problems.append(str(e)))
    opened.goto(server.url)
    yield opened
    context.close()
    assert all(u.startswith((server.url, "data:")) for u in asked), asked
    assert not problems
    server.idle()


def shot(page: Any, name: str) -> None:
    """A picture for a person to look at, where HEADSTART_SHOTS names a folder."""
    folder = os.environ.get("HEADSTART_SHOTS")
    if folder:
        page.screenshot(path=str(Path(folder) / f"{name}.png"))


def say(page: Any, text: str, tokens: int = 60) -> None:
    page.get_by_label("Longest answer").fill(str(tokens))
    page.get_by_label("Message", exact=True).fill(text)
    page.keyboard.press("Enter")


@needs_browser
def test_a_chat_shows_origins_and_figures(page: Any) -> None:
    page.get_by_text("tiny, context 2048 tokens").wait_for()
    say(page, "ab " * 40)
    playwright.expect(page.locator("#status")).to_contain_text("Answer complete")
    assert "60 tokens" in (said := page.locator("#status").text_content()) and "per pass" in said
    text = page.locator(".model .text")
    kinds = {k: text.locator(f".{k}").count() for k in ("draft", "recovered", "bonus")}
    assert kinds["recovered"] > 0
    # Each kind has a line of its own, so that it can be told without seeing colours; the legend shows the same.
    marks = {k: page.evaluate(f"getComputedStyle(document.querySelector('.legend .{k}')).textDecorationStyle") for k in kinds}
    assert len(set(marks.values())) == 3
    assert float(page.locator("#speed").text_content()) > 0 and float(page.locator("#pace").text_content()) >= 1
    assert " of " in page.locator("#rate").text_content()
    assert page.locator("#curve").get_attribute("points") and "steps" in page.locator("#chart").get_attribute("aria-label")
    shot(page, "chat")


@needs_browser
@pytest.mark.parametrize("temperature", ["0", "0.8"])
def test_the_race_is_even(page: Any, temperature: str) -> None:
    page.get_by_label("Temperature").fill(temperature)
    page.get_by_role("switch", name="Race").focus()
    page.keyboard.press("Space")
    say(page, PROMPT, 40)
    verdict = page.locator(".verdict")
    verdict.wait_for()
    assert verdict.text_content().startswith("identical") and "times the speed" in verdict.text_content()
    boxes = page.locator(".pair > div .text")
    assert boxes.count() == 2 and boxes.nth(0).text_content() == boxes.nth(1).text_content() != ""
    assert page.locator("del").count() == 1  # that of the legend: a race does not trace
    assert boxes.nth(0).locator(".draft, .recovered, .bonus").count() == 0 and boxes.nth(1).locator(".recovered").count() > 0
    shot(page, f"race-{temperature}")


@needs_browser
def test_p_and_q_and_rejected_drafts_by_mouse_and_key(page: Any) -> None:
    page.get_by_label("Temperature").fill("0.3")
    page.get_by_label("Rule").select_option("rejection")
    page.get_by_label("Seed", exact=True).fill("2")
    say(page, "ab " * 40)
    playwright.expect(page.locator("#status")).to_contain_text("Answer complete")
    tip, tokens = page.get_by_role("tooltip"), page.locator(".model .text > span")
    assert tokens.count() >= 60 and not tip.is_visible()
    recovered = page.locator(".model .recovered").first
    recovered.hover()
    assert tip.is_visible() and "p = " in tip.text_content() and "rejected “" in tip.text_content()
    shot(page, "tip")
    page.mouse.move(0, 0)
    assert not tip.is_visible()
    page.locator("#log").focus()
    page.keyboard.press("ArrowRight")
    assert tip.is_visible() and tokens.first.get_attribute("aria-describedby") == "tip"
    first = tip.text_content()
    for _ in range(70):
        page.keyboard.press("ArrowRight")
    assert tip.text_content() != first and tokens.last.evaluate("e => e === document.activeElement")
    page.keyboard.press("Tab")
    assert not tip.is_visible()
    rejected = page.locator(".model del")
    assert rejected.count() > 0 and not rejected.first.is_visible()
    page.get_by_label("Show rejected drafts").check()
    assert rejected.first.is_visible()
    shot(page, "rejected")
    # The bars say the same as the sums of the answer.
    counts = [row.split(" of ") for row in page.locator("#bars .n").all_text_contents()]
    stood, drafted = sum(int(a) for a, _ in counts), sum(int(b) for _, b in counts)
    assert page.locator("#rate").text_content().startswith(f"{stood} of {drafted} (") and 0 < stood < drafted
    assert drafted - stood == rejected.count()


@needs_browser
def test_copied_as_curl_it_is_the_same_request(page: Any, server: Running) -> None:
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_label("Longest answer").fill("7")
    page.get_by_label("Message", exact=True).fill("it's the cat")
    page.get_by_role("button", name="Copy as curl").click()
    playwright.expect(page.locator("#status")).to_have_text("Copied")
    words = shlex.split(page.evaluate("navigator.clipboard.readText()"))
    body = json.loads(words[-1])
    assert words[:2] == ["curl", server.url + "/v1/chat/completions"] and body["messages"] == [{"role": "user", "content": "it's the cat"}]
    answer = server.client.post("/v1/chat/completions", json=body).json()
    page.keyboard.press("Shift+Tab")
    say(page, "it's the cat", 7)
    playwright.expect(page.locator("#status")).to_contain_text("Answer complete")
    assert "".join(page.locator(".model .text > span").all_text_contents()) == answer["choices"][0]["message"]["content"]


@needs_browser
def test_escape_stops_and_errors_are_words(page: Any, server: Running) -> None:
    page.get_by_label("Seed").fill("1")
    say(page, PROMPT, 1900)
    page.locator(".model .text span").first.wait_for()
    page.keyboard.press("Escape")
    # On a fast machine the answer may have come to its own end before.
    playwright.expect(page.locator("#status")).to_have_text(re.compile("^(stopped|Answer complete)"))
    server.idle()
    # What a person may type that the server refuses is said in the server's words; the page's own console stays quiet of it.
    page.evaluate("window.fetch = async () => new Response(JSON.stringify({error: {message: 'max_tokens is too large'}}), {status: 400})")
    say(page, PROMPT, 10)
    page.locator(".error", has_text="max_tokens is too large").wait_for()
    page.get_by_role("button", name="Clear").click()
    assert page.locator(".turn").count() == 0


@needs_browser
def test_text_of_the_model_is_never_markup(page: Any) -> None:
    page.evaluate("turn('model', 'model').append(make('p', 'text', '<img src=x onerror=boom()>'))")
    assert page.locator("img").count() == 0 and page.get_by_text("<img src=x").count() == 1


@needs_browser
def test_every_control_has_a_name_and_can_be_reached_by_key(page: Any) -> None:
    page.evaluate("document.getElementById('log').focus()")
    reached = set()
    for _ in range(26):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.id"))
    expected = {
        "prompt",
        "race",
        "clear",
        "send",
        "system",
        "temperature",
        "top_p",
        "max_tokens",
        "seed",
        "drafts",
        "verify",
        "refused",
        "curl",
    }
    assert expected <= reached, expected - reached
    for element in page.locator("input, textarea, select, button").all():
        named = element.evaluate("e => (e.labels && e.labels.length ? e.labels[0].textContent : e.textContent).trim()")
        assert named, element.evaluate("e => e.outerHTML")


@needs_browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_contrast_is_enough_in_light_and_dark(browser: Any, server: Running, scheme: str) -> None:
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 800})
    page = context.new_page()
    page.goto(server.url)
    say(page, "ab " * 40)
    playwright.expect(page.locator("#status")).to_contain_text("Answer complete")
    shot(page, scheme)
    page.set_viewport_size({"width": 420, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    shot(page, f"{scheme}-narrow")
    for kind in ("draft", "recovered", "bonus"):
        colours = page.evaluate(f"(s => [s.color, s.backgroundColor])(getComputedStyle(document.querySelector('.legend .{kind}')))")
        assert contrast(*colours) >= 4.5, (kind, colours)
    assert contrast(*page.evaluate("(s => [s.color, s.backgroundColor])(getComputedStyle(document.body))")) >= 7
    context.close()


def contrast(a: str, b: str) -> float:
    """WCAG's ratio of two `rgb(r, g, b)` colours."""

    def light(colour: str) -> float:
        parts = [int(x) / 255 for x in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        r, g, b_ = (x / 12.92 if x <= 0.03928 else ((x + 0.055) / 1.055) ** 2.4 for x in parts)
        return 0.2126 * r + 0.7152 * g + 0.0722 * b_

    high, low = sorted((light(a), light(b)), reverse=True)
    return (high + 0.05) / (low + 0.05)
