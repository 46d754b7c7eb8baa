"""The page of `pom serve` in Firefox: the main path of test_serve_page.py, on the same mock. In every test:
no error of the page on the console, nothing that the policy forbids, no request of it to another host."""

import contextlib
import os
import socket
import time

import pytest

import tools
from serve_page_mock import Mock, serve

marionette_driver, FIREFOX = tools.firefox()
Errors = marionette_driver.errors
PATIENCE = 20.0
# In the browser's own context: what pages ask for, and of whom.
WATCH = """
globalThis.pomAsked = [];
globalThis.pomWatcher ??= {
  observe(subject) {
    const channel = subject.QueryInterface(Ci.nsIHttpChannel), page = channel.loadInfo?.loadingPrincipal;
    if (page?.isContentPrincipal) globalThis.pomAsked.push([page.origin, channel.URI.spec]);
  },
};
try { Services.obs.removeObserver(globalThis.pomWatcher, "http-on-modify-request"); } catch {}
Services.obs.addObserver(globalThis.pomWatcher, "http-on-modify-request");
Services.console.reset();
"""
ASKED = "return globalThis.pomAsked"
ERRORS = """
const found = [];
for (const message of Services.console.getMessageArray()) {
  let error;
  try { error = message.QueryInterface(Ci.nsIScriptError); } catch { continue; }
  if (error.sourceName.startsWith(arguments[0])) found.push(error.errorMessage);
}
return found;
"""


@pytest.fixture(scope="module")
def browser():
    with socket.socket() as line:
        line.bind(("127.0.0.1", 0))
        port = line.getsockname()[1]
    driver = marionette_driver.marionette.Marionette(
        bin=FIREFOX,
        headless=True,
        host="127.0.0.1",
        port=port,
        prefs={"ui.prefersReducedMotion": 0},
        gecko_log=os.devnull,
    )
    driver.start_session()
    yield driver
    driver.quit()


class Visit:
    def __init__(self, browser, mock, view):
        self.browser, self.mock, self.server = browser, mock, serve(mock)
        self.base = f"http://127.0.0.1:{self.server.server_address[1]}"
        with browser.using_context("chrome"):
            browser.execute_script(WATCH, sandbox="system", new_sandbox=False)
        browser.navigate(f"{self.base}/#{view}")

    def script(self, text, *arguments):
        return self.browser.execute_script(text, script_args=arguments, sandbox=None)

    def count(self, selector):
        return self.script("return document.querySelectorAll(arguments[0]).length", selector)

    def text(self, selector):
        return self.script("return document.querySelector(arguments[0])?.textContent ?? ''", selector)

    def find(self, selector):
        self.wait(lambda: self.count(selector) > 0, selector)
        return self.browser.find_element("css selector", selector)

    def click(self, selector):
        """Once it can be clicked."""

        def clicked():
            try:
                self.find(selector).click()
            except (Errors.ElementNotInteractableException, Errors.StaleElementException):
                return False
            return True

        self.wait(clicked, selector)

    def keys(self, text, selector="body"):
        self.find(selector).send_keys(text)

    def wait(self, until, what="", patience=PATIENCE):
        end = time.monotonic() + patience
        while not until():
            assert time.monotonic() < end, f"waited for {what or until}"
            time.sleep(0.02)

    def frame(self):
        found = self.script("return document.querySelector('[data-testid=live-canvas]')?.dataset.frame")
        return int(found) if found else -1

    def close(self):
        self.browser.navigate("about:blank")
        with self.browser.using_context("chrome"):
            errors = self.browser.execute_script(
                ERRORS, script_args=[self.base], sandbox="system", new_sandbox=False
            )
            asked = self.browser.execute_script(ASKED, sandbox="system", new_sandbox=False)
        for stream in self.mock.streams.values():
            stream.state = "ended"
        self.server.shutdown()
        assert errors == []
        own = [url for page, url in asked if page == self.base]
        assert own and all(url.startswith(self.base) for url in own)


@pytest.fixture
def visit(browser):
    with contextlib.ExitStack() as stack:

        def begin(mock, view="make"):
            here = Visit(browser, mock, view)
            stack.callback(here.close)
            return here

        yield begin


def test_make_see_previews_cancel_reproduce(visit):
    here = visit(Mock(pace=1.2))
    here.find("input[type=radio][value=star]")
    here.script("document.querySelector('input[type=radio][value=star]').click()")
    here.click("[data-testid=make]")
    here.wait(lambda: here.count("[data-testid=plate][data-previews]:not([data-previews='0'])"), "previews")
    here.wait(lambda: here.count("[data-testid=job][data-state=completed]") == 1, "the picture")
    here.wait(lambda: here.count("[data-testid=picture] img[alt=star]") == 1, "the gallery")
    width = "return document.querySelector('[data-testid=plate] img').naturalWidth"
    here.wait(lambda: here.script(width) == 64, "its pixels")
    here.mock.pace = 8
    here.click("[data-testid=make]")
    here.click("[data-testid=cancel]")
    here.wait(lambda: "cancelled" in [job["state"] for job in here.mock.jobs.values()], "the cancel")
    here.mock.pace = 0.3
    here.click("[data-testid=picture]")
    here.click("[data-testid=reproduce]")
    verdict = "[data-testid=reproduce-verdict]"
    here.wait(lambda: here.text(verdict) == "Made again: the pixels agree.", "the verdict")


def test_reload_in_the_middle(visit):
    here = visit(Mock(pace=10))
    here.find("input[type=radio][value=moon]")
    here.script("document.querySelector('input[type=radio][value=moon]').click()")
    here.click("[data-testid=make]")
    here.wait(lambda: here.count("[data-testid=job][data-state=running]") == 1, "the job")
    here.browser.refresh()
    here.wait(lambda: here.count("[data-testid=job][data-state=running]") == 1, "the job after a reload")
    here.mock.pace = 0.3
    here.wait(lambda: here.count("[data-testid=job][data-state=completed]") == 1, "its end")
    here.wait(lambda: here.count("[data-testid=picture]") == 1, "its picture")


def test_watch_a_stream_and_change_its_prompt_by_keyboard(visit):
    here = visit(Mock(pace=0.6), "live")
    here.click("[data-testid=live-start]")
    here.wait(lambda: here.frame() >= 2, "frames")
    drawn = "return document.querySelector('[data-testid=live-canvas]').toDataURL()"
    before, first = here.frame(), here.script(drawn)
    here.wait(lambda: here.frame() > before and here.script(drawn) != first, "moving pixels")
    here.script("document.activeElement?.blur()")
    here.keys("/")
    focused = "return document.activeElement.dataset.testid"
    here.wait(lambda: here.script(focused) == "live-prompt", "the prompt box")
    box = here.find("[data-testid=live-prompt]")
    box.clear()
    box.send_keys("a pink heart drifts to the left over black" + "\ue007")
    shown = "[data-testid=prompt-item][data-number='1'][aria-current]"
    here.wait(lambda: here.count(shown) == 1, "the new prompt on screen")
    here.browser.refresh()
    here.wait(lambda: here.count(shown) == 1 and here.frame() > before, "the same after a reload")
    here.click("[data-testid=live-stop]")
    here.wait(lambda: here.mock.open["frames"] == 0, "the end of frames")
