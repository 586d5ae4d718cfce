"""The web page in headless Chromium, through Playwright: send, stream, stop, an error. `make test-web` runs it.

Not among the tests that `make test` runs, for it needs a browser of the system: web_check.py CHROMIUM [FOLDER for
screenshots].
"""

import pathlib
import sys

from playwright.sync_api import expect, sync_playwright
from server_support import RunningServer

expect.set_options(timeout=60_000)


def check(page, server: RunningServer, pictures: pathlib.Path | None) -> None:
    problems: list[str] = []
    hosts: set[str] = set()
    page.on("pageerror", lambda e: problems.append(str(e)))
    page.on("request", lambda r: hosts.add(r.url.split("/")[2]))
    page.goto(server.url + "/")
    expect(page.locator("#model option")).to_have_count(1)

    page.fill("#max_tokens", "40")
    page.fill("#temperature", "0")
    page.fill("#text", "Say hello.")
    page.press("#text", "Enter")
    expect(page.locator(".message.user")).to_have_text("Say hello.")
    expect(page.locator(".message.assistant .note")).to_contain_text("tokens")
    assert page.locator(".message.assistant").inner_text().strip()
    expect(page.locator("#live-running")).to_have_text("0")
    if pictures:
        page.screenshot(path=str(pictures / "chat.png"))
    print("send and stream: right")

    page.click("#clear")
    page.fill("#max_tokens", "")
    page.fill("#temperature", "1.5")
    page.fill("#text", "Go on and on.")
    page.click("#send")
    expect(page.locator("#stop")).to_be_visible()
    expect(page.locator(".message.assistant")).not_to_be_empty()
    page.click("#stop")
    expect(page.locator(".message.assistant .note")).to_have_text("stopped")
    expect(page.locator("#send")).to_be_visible()
    server.wait_idle()
    print("stop: right, and the server's request ended")

    page.click("#clear")
    page.fill("#max_tokens", "0")
    page.fill("#text", "<b>no markup</b>")
    page.click("#send")
    expect(page.locator(".message.error")).to_contain_text("max_tokens must be at least 1")
    assert page.locator("#log b").count() == 0
    if pictures:
        page.screenshot(path=str(pictures / "error.png"))
    print("error: shown")

    assert hosts == {f"127.0.0.1:{server.port}"}, hosts
    assert problems == [], problems
    print("no other host was asked, no error in the page")


def main() -> None:
    chromium = sys.argv[1]
    pictures = pathlib.Path(sys.argv[2]) if len(sys.argv) > 2 else None
    server = RunningServer("smollm2", "--max-model-len", "4096")  # slow enough to be stopped
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1100, "height": 700})
            check(page, server, pictures)
            browser.close()
    finally:
        server.kill()
    print("1 passed, 0 failed")


if __name__ == "__main__":
    main()
